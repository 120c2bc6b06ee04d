"""The order of each publisher's chain in the log: what waits, what is marked, and what is asked."""

from mutants.mutation import Mutant

ORDER = (
    Mutant(
        "a frame behind a gap waits",
        "anabranch.core.chain_order:ChainOrder._mark",
        "return None if at_ms >= self._floor_ms else 0",
        "return 0",
        (
            "tests/core/test_chain_order.py::test_frame_behind_a_gap_waits_while_other_chains_go_on_and_follows_what_comes",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "only the chain with a gap waits, never the log",
        "anabranch.core.chain_order:ChainOrder.has_room",
        "return self._busy < MAX_BUSY_CHAINS",
        "return self._busy < MAX_BUSY_CHAINS and not self._waiting",
        (
            "tests/core/test_chain_order.py::test_frame_behind_a_gap_waits_while_other_chains_go_on_and_follows_what_comes",
            "tests/core/test_chain_order.py::test_publisher_that_invents_gaps_delays_only_its_own_chains_and_is_bounded",
        ),
    ),
    Mutant(
        "a frame behind a newer one of its chain is late",
        "anabranch.core.chain_order:ChainOrder._mark",
        "return 0 if previous == newest else LATE",
        "return 0",
        (
            "tests/core/test_chain_order.py::test_second_frame_with_the_same_previous_is_late",
            "tests/core/test_chain_order.py::test_gap_that_is_not_closed_is_recorded_without_an_offset",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "a gap that stays is recorded",
        "anabranch.core.chain_order:ChainOrder._use_found",
        "mark = chain.newest + 1  # the gap record",
        "mark = 0",
        (
            "tests/core/test_chain_order.py::test_gap_that_is_not_closed_is_recorded_without_an_offset",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "gap records are sent to followers",
        "anabranch.core.log_leading:Leading._send",
        "entries.append(fresh.entry)",
        "entries.append(msgspec.structs.replace(fresh.entry, mark=0))",
        ("tests/core/test_chain_order.py::test_follower_copies_marks_with_the_entries",),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "marks are part of a log's hash",
        "anabranch.core.store:hash_after",
        "if entry.mark:",
        "if not entry.frame:",
        ("tests/contract/test_store.py::test_marks_stay_with_their_entries_and_are_hashed",),
    ),
    Mutant(
        "marks are covered by the checksum of a row",
        "anabranch.live.storage.rows:placed_in",
        "if mark != 0:",
        "if mark is None:",
        (
            "tests/live/storage/test_sqlite.py::test_file_of_the_first_format_is_read_and_takes_marks",
        ),
    ),
    Mutant(
        "of one publisher only so many chains wait",
        "anabranch.core.chain_order:ChainOrder._hold",
        "if len(publisher.chains) > MAX_WAITING_PER_PUBLISHER:",
        "if not publisher.chains:",
        (
            "tests/core/test_chain_order.py::test_publisher_that_invents_gaps_delays_only_its_own_chains_and_is_bounded",
        ),
    ),
    Mutant(
        "of one publisher only so many frames wait",
        "anabranch.core.chain_order:ChainOrder._hold",
        "elif publisher.held > MAX_HELD_PER_PUBLISHER:",
        "elif not publisher.held:",
        (
            "tests/core/test_chain_order.py::test_chain_with_more_held_frames_than_its_publisher_may_have_goes_on",
        ),
    ),
    Mutant(
        "frames that were missing are verified",
        "anabranch.core.missing_frames:MissingFrames._is_good",
        "if not self._verified.check(head, frame):",
        "if not frame:",
        (
            "tests/core/test_chain_order.py::test_frames_that_were_not_asked_for_or_are_forged_cost_their_sender_its_link",
        ),
    ),
    Mutant(
        "frames that were missing are of the chain that was asked for",
        "anabranch.core.missing_frames:MissingFrames._is_good",
        "if head.part != part_key(part) or head.chain != want.chain or not within:",
        "if head.part != part_key(part):",
        (
            "tests/core/test_chain_order.py::test_frames_that_were_not_asked_for_or_are_forged_cost_their_sender_its_link",
        ),
    ),
    Mutant(
        "frames that were missing are of who may publish",
        "anabranch.core.missing_frames:MissingFrames._is_permitted",
        "return self._registry.permits(part, head.publisher, now)",
        "return True",
        (
            "tests/core/test_chain_order.py::test_frame_of_a_publisher_that_is_not_permitted_is_not_taken_from_a_neighbour",
        ),
    ),
    Mutant(
        "a receipt signs whether its frame is late",
        "anabranch.core.receipts:signed_bytes",
        "digest.update(bytes([holding.late]))",
        "digest.update(bytes([0]))",
        ("tests/core/test_receipts.py::test_receipt_signs_whether_the_frame_is_late",),
    ),
    Mutant(
        "readers are told which frames are late",
        "anabranch.core.replay:Replay._rows",
        "cut = msgspec.structs.replace(cut, late=True)",
        "pass",
        ("tests/core/test_replay.py::test_frame_that_is_late_in_the_log_is_delivered_as_late",),
    ),
)
