"""What is stored later, and what is damaged: comparisons, unstored frames, repairs, lost history."""

from mutants.mutation import Mutant

KEEPING = (
    Mutant(
        "found frames are not older than what retention keeps",
        "anabranch.core.storage_comparison:Comparisons._problem_with",
        "if at_s < self._oldest_s(now):",
        "if at_s < 0:",
        ("tests/core/test_storage_comparison.py::test_frames_out_of_time_are_not_taken",),
    ),
    Mutant(
        "only storage nodes of the stream may compare",
        "anabranch.core.comparison_server:ComparisonServer.ask_ranges",
        "if not self._stores(ask.part.stream, sender):",
        "if not ask.part:",
        (
            "tests/core/test_comparison_server.py::test_a_node_that_is_no_storage_node_of_the_stream_gets_no_answer",
        ),
    ),
    Mutant(
        "comparisons of one storage node are bounded",
        "anabranch.core.comparison_server:ComparisonServer._allows",
        "if allowance.left < 1:",
        "if allowance.left < -MAX_AT_ONCE:",
        (
            "tests/core/test_comparison_server.py::test_a_storage_node_that_asks_too_much_is_told_to_wait",
        ),
    ),
    Mutant(
        "marks of storage nodes that are not named any more do not count",
        "anabranch.core.unstored:UnstoredFrames._count",
        "if sum(1 for node in kept.marks if node in state.nodes) >= state.majority:",
        "if len(kept.marks) >= state.majority:",
        ("tests/core/test_unstored.py::test_marks_of_the_storage_nodes_that_are_named_now_count",),
    ),
    Mutant(
        "unstored frames are bounded in bytes",
        "anabranch.core.unstored:UnstoredFrames.keep",
        "if self._bytes > self._bound_bytes:",
        "if not state.nodes:",
        (
            "tests/core/test_unstored.py::test_above_the_bound_the_oldest_frames_are_given_up_and_counted",
        ),
    ),
    Mutant(
        "given up messages are counted",
        "anabranch.core.unstored:UnstoredFrames._give_up",
        "self.count_lost(state.part, kept.count)",
        "assert kept.count",
        (
            "tests/core/test_unstored.py::test_above_the_bound_the_oldest_frames_are_given_up_and_counted",
        ),
    ),
    Mutant(
        "frames of the data folder are what was written",
        "anabranch.live.data_folder:_kept_in",
        "if _checksum(part, given, frame) != checksum:",
        "if not frame:",
        ("tests/live/test_data_folder.py::test_damaged_frames_are_left_out_and_counted",),
    ),
    Mutant(
        "a data folder has one process",
        "anabranch.live.data_folder:DataFolder._take_lock",
        "fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("tests/live/test_data_folder.py::test_a_folder_is_locked_until_it_is_closed",),
    ),
    Mutant(
        "frames that may lie in a hole are not handed over",
        "anabranch.core.storage_asks:Asks._may_be_damaged",
        "return any(at_ms <= hole.before_ms for hole in standing.state.missing)",
        "return at_ms < 0",
        (
            "tests/core/test_storage_asks.py::test_a_frame_that_may_lie_in_a_hole_is_not_named_as_lacking",
        ),
    ),
    Mutant(
        "a log with a hole does not lead",
        "anabranch.core.part_log:PartLog._begin_mending",
        "self.standing.step_down()",
        "assert self.standing.is_primary",
        (
            "tests/core/test_storage_repair.py::test_a_primary_with_a_hole_lets_another_lead_and_does_not_place_what_may_be_in_it",
        ),
    ),
    Mutant(
        "what fills a hole is not shown before it is proved",
        "anabranch.live.storage.holes:hidden",
        "return offset is not None and any(hole.start <= offset < hole.end for hole in log.missing)",
        "return offset is not None and not log",
        (
            "tests/live/storage/test_damage.py::test_what_is_filled_in_is_not_shown_before_the_hole_is_closed",
        ),
    ),
    Mutant(
        "entries of a log are not sent past a hole",
        "anabranch.core.storage_resends:Resends._found_entries",
        "if row.offset != at:",
        "if at < 0:",
        (
            "tests/core/test_storage_repair.py::test_entries_are_sent_to_storage_nodes_alone_and_without_a_hole",
        ),
    ),
    Mutant(
        "entries that repair a log are signed",
        "anabranch.core.storage:Storage._take_entries",
        "if not self.verified.check(frames.peek(entry.frame), entry.frame):",
        "if not entry.frame:",
        ("tests/core/test_storage_repair.py::test_a_forgery_costs_the_link",),
    ),
    Mutant(
        "a scrub finds rows that are not what was written",
        "anabranch.live.storage.sqlite:SqliteLogStore.scrub_rows",
        "if log is not None and named_in(log.seed, row) is None:",
        "if log is None:",
        ("tests/live/storage/test_scrub.py::test_a_scrub_finds_what_nobody_reads",),
    ),
    Mutant(
        "a reader says what all storage nodes lack",
        "anabranch.core.replay:Replay._leave_out_lost",
        "self._lost.add((span,))",
        "assert span",
        ("tests/core/test_replay_damage.py::test_what_all_lack_is_named_with_its_offsets",),
    ),
    Mutant(
        "a reader by time says what all storage nodes lack",
        "anabranch.core.replay:Replay._join",
        "self._lost.add(in_all([page.missing for page in pages.values()]))",
        "assert pages",
        (
            "tests/core/test_replay_damage.py::test_by_time_what_all_lack_is_named_though_its_times_are_not_known",
        ),
    ),
    Mutant(
        "columns name what all storage nodes lack",
        "anabranch.live.columns:_Place._next",
        "self.lost.add((Span(self.position, end),))",
        "assert end",
        ("tests/live/test_columns.py::test_what_all_lack_is_named_at_the_end",),
    ),
    Mutant(
        "a scrub does not go back",
        "anabranch.live.storage.sqlite:SqliteLogStore.scrub_rows",
        "_check_order(after, rows)",
        "assert after >= 0",
        (
            "tests/live/storage/test_damage.py::test_a_scrub_of_a_row_whose_id_is_zeroed_ends_and_finds_it",
        ),
    ),
    Mutant(
        "a page of a storage node that is behind does not pass for the end",
        "anabranch.core.storage_resends:_lacks_end",
        "return not is_gap and is_end and standing.is_behind(now)",
        "return not is_gap and is_end and wanted.upto == MAX_NUMBER",
        (
            "tests/core/test_storage_resends.py::test_who_has_not_caught_up_sends_those_who_read_to_the_end_to_others",
        ),
    ),
)
