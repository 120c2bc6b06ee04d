"""Storage: votes, terms, the high-water mark, receipts, and what reaches the disk."""

from mutants.mutation import Mutant

STORAGE = (
    Mutant(
        "receipts are for our frame",
        "anabranch.core.receipts:Receipts._acknowledged",
        "if not all(kept.is_given or holding.digest == kept.digest for kept, _, holding in news):",
        "if not news:",
        ("tests/core/test_receipts.py::test_a_false_word_costs_the_link_and_counts_for_nothing",),
    ),
    Mutant(
        "only storage nodes of the stream give receipts",
        "anabranch.core.receipts:Receipts._acknowledged",
        "if not news or not self._keeps(sender, part):",
        "if not news:",
        (
            "tests/core/test_receipts.py::test_who_is_not_a_storage_node_of_the_stream_is_not_believed",
        ),
    ),
    Mutant(
        "receipts agree on the offset",
        "anabranch.core.receipts:Receipts._said",
        "words = _at(awaited, offset)",
        "words = tuple((node, word) for node, (_, word) in awaited.words.items())",
        ("tests/core/test_receipts.py::test_only_words_on_one_offset_are_counted_together",),
    ),
    Mutant(
        "a receipt needs as many words as copies",
        "anabranch.core.receipts:Receipts._said",
        "done = [ticket for ticket, copies in awaited.wanted if copies <= len(words)]",
        "done = [ticket for ticket, copies in awaited.wanted if copies]",
        (
            "tests/core/test_receipts.py::test_a_receipt_comes_when_so_many_have_said_that_they_hold_it",
        ),
    ),
    Mutant(
        "frames of another log are verified",
        "anabranch.core.storage:Storage._check_page",
        "if not self.verified.check(head, entry.frame):",
        "if not entry.frame:",
        (
            "tests/core/test_part_log_copying.py::test_a_forged_frame_in_the_primarys_log_is_a_fault_and_is_not_copied",
        ),
    ),
    Mutant(
        "handed frames are of who may publish",
        "anabranch.core.storage:Storage._may_offer",
        "return is_recent and self._registry.permits(part, publisher_of(chain), now)",
        "return is_recent",
        ("tests/core/test_storage.py::test_rights_of_readers_are_none_of_publishers",),
    ),
    Mutant(
        "frames are handed over by their publisher",
        "anabranch.core.storage:Storage._may_hand",
        "return is_own and self._may_offer(part, head.chain, head.last, now)",
        "return self._may_offer(part, head.chain, head.last, now)",
        (
            "tests/core/test_storage.py::test_frames_of_others_of_the_future_and_of_nobody_are_not_taken",
        ),
    ),
    Mutant(
        "publishers hand over what retention has not deleted",
        "anabranch.core.storage:Storage._may_offer",
        "is_recent = self._keep_ms is None or age_s * 1000 <= self._keep_ms",
        "is_recent = age_s < now",
        (
            "tests/core/test_storage.py::test_own_frames_are_taken_late_but_not_when_retention_would_delete_them",
        ),
    ),
    Mutant(
        "frames of another part are not taken",
        "anabranch.core.storage:Storage._hand",
        "if head.part != key:",
        "if not head.part:",
        ("tests/core/test_storage.py::test_a_forgery_and_a_frame_of_another_part_cost_the_link",),
    ),
    Mutant(
        "receipts are given to readers and writers",
        "anabranch.core.storage:Storage._ask_stored",
        "if not self._readers.may_read(ask.part.stream, sender, now):",
        "if not sender:",
        ("tests/core/test_storage_asks.py::test_only_who_published_it_and_who_may_read_is_told",),
    ),
    Mutant(
        "a log holds what its publishers could publish",
        "anabranch.core.storage:Storage._check_page",
        "if not all(wrote(stream, publisher) for publisher in {head.publisher for head in heads}):",
        "if not all(stream for publisher in {head.publisher for head in heads}):",
        (
            "tests/core/test_part_log_copying.py::test_a_page_waits_for_the_registry_to_know_all_who_published_what_is_in_it",
        ),
    ),
    Mutant(
        "a log is deleted when the registry says so twice",
        "anabranch.core.storage:Storage._seems_deleted",
        "if self._registry.confirmed_at(stream) > since:",
        "if self._registry.confirmed_at(stream) >= 0:",
        (
            "tests/core/test_storage.py::test_a_deleted_stream_is_deleted_once_the_registry_has_said_so_again",
        ),
    ),
    Mutant(
        "a vote goes to a log that is as good",
        "anabranch.core.log_election:Election.asked",
        "fits = (vote.log_epoch, vote.length) >= standing.rank",
        "fits = vote.log_epoch >= 0",
        ("tests/core/test_part_log.py::test_a_log_that_is_worth_less_gets_no_vote",),
        scenario="random-storage",
        seeds=150,
    ),
    Mutant(
        "one vote in an epoch",
        "anabranch.core.log_election:Election.asked",
        "if (vote.epoch, sender) == (standing.epoch, standing.voted):\nreturn self.wrote()  # our first word was lost, or is not on the disk yet",
        "if vote.epoch == standing.epoch:\n    return [Send(sender, Voted(standing.part, vote.epoch, True, True))]",
        (
            "tests/core/test_part_log.py::test_a_vote_is_on_the_disk_before_the_candidate_hears_of_it",
        ),
        scenario="random-storage",
        seeds=40,
    ),
    Mutant(
        "a vote is on the disk before it counts",
        "anabranch.core.log_election:Election.asked",
        "return []  # the promise goes to the disk first",
        "return [Send(sender, Voted(standing.part, vote.epoch, True, True))]",
        (
            "tests/core/test_part_log.py::test_a_vote_is_on_the_disk_before_the_candidate_hears_of_it",
        ),
    ),
    Mutant(
        "our own vote is on the disk before it counts",
        "anabranch.core.log_election:Election.wrote",
        "if not standing.is_promised or standing.voted == NOBODY:",
        "if standing.voted == NOBODY:",
        (
            "tests/core/test_part_log.py::test_a_vote_is_on_the_disk_before_the_candidate_hears_of_it",
        ),
    ),
    Mutant(
        "a majority elects",
        "anabranch.core.log_election:Election._count",
        "if self._asked != still or standing.primary or len(self._granted) < standing.majority:",
        "if self._asked != still or standing.primary or not self._granted:",
        (
            "tests/core/test_part_log.py::test_a_node_asks_before_it_stands_and_its_own_vote_is_on_the_disk_before_it_counts",
        ),
        scenario="random-storage",
        seeds=40,
    ),
    Mutant(
        "a majority is more than half",
        "anabranch.core.log_standing:Standing.majority",
        "return len(self.members) // 2 + 1",
        "return max(1, len(self.members) // 2)",
        (
            "tests/core/test_part_log.py::test_a_node_asks_before_it_stands_and_its_own_vote_is_on_the_disk_before_it_counts",
        ),
        scenario="random-storage",
        seeds=30,
    ),
    Mutant(
        "new storage nodes begin no second log",
        "anabranch.core.log_election:Election.wake",
        "has_log = standing.state.log_epoch > 0 or self.may_begin",
        "has_log = True",
        (
            "tests/core/test_part_log.py::test_of_a_stream_that_has_moved_only_its_first_storage_nodes_begin_a_log",
        ),
    ),
    Mutant(
        "the high-water mark is what a majority has",
        "anabranch.core.log_leading:Leading.settle",
        "mark = sorted(held, reverse=True)[standing.majority - 1]",
        "mark = sorted(held, reverse=True)[0]",
        (
            "tests/core/test_part_log.py::test_followers_are_sent_what_is_on_the_disk_and_it_is_settled_when_one_has_it",
        ),
        scenario="random-storage",
        seeds=110,
    ),
    Mutant(
        "followers count from the begin of the epoch",
        "anabranch.core.log_leading:Leading._compare",
        "if offset >= standing.begin and fetch.log_epoch == standing.epoch:",
        "if fetch.log_epoch == standing.epoch:",
        (
            "tests/core/test_part_log.py::test_a_wrong_hash_a_wrong_epoch_and_a_log_before_the_epoch_count_for_nothing",
        ),
    ),
    Mutant(
        "a follower counts where its log is ours",
        "anabranch.core.log_leading:Leading._compare",
        "if offset == fetch.offset and known == fetch.hash:",
        "if offset == fetch.offset:",
        (
            "tests/core/test_part_log.py::test_a_wrong_hash_a_wrong_epoch_and_a_log_before_the_epoch_count_for_nothing",
        ),
        scenario="random-storage",
        seeds=60,
    ),
    Mutant(
        "a log is stamped when it has all that the primary began with",
        "anabranch.core.log_following:Following._stage_copy",
        "if is_other and offset >= standing.begin:",
        "if is_other:",
        (
            "tests/core/test_part_log_copying.py::test_a_log_is_stamped_when_it_has_all_that_the_primary_began_with_and_not_before",
        ),
    ),
    Mutant(
        "what is settled stays",
        "anabranch.core.log_following:Following._compared",
        "if offset < high and not self._replaces_hole(comparison, offset):",
        "if offset < 0:",
        (
            "tests/core/test_part_log_lies.py::test_what_is_settled_stays_although_the_primarys_log_is_the_same_before_it",
        ),
    ),
    Mutant(
        "a settled hole is replaced by no less than it had",
        "anabranch.core.log_following:Following._replaces_hole",
        "return end >= min(hole.end, page.begin) and end >= standing.high and not is_against",
        "return not is_against",
        (
            "tests/core/test_part_log_copying.py::test_hole_around_the_high_water_mark_is_kept_if_the_page_lacks_a_part_of_it",
        ),
    ),
    Mutant(
        "a settled hole is not replaced against the own mark",
        "anabranch.core.log_following:Following._replaces_hole",
        "return end >= min(hole.end, page.begin) and end >= standing.high and not is_against",
        "return end >= min(hole.end, page.begin)",
        (
            "tests/core/test_part_log_copying.py::test_hole_around_the_high_water_mark_is_kept_if_the_own_mark_contradicts_the_page",
        ),
    ),
    Mutant(
        "a settled hole is replaced by an epoch that began with all of it",
        "anabranch.core.log_following:Following._replaces_hole",
        "if hole is None or hole.start != offset or page.begin < standing.high:",
        "if hole is None or hole.start != offset:",
        (
            "tests/core/test_part_log_copying.py::test_hole_around_the_high_water_mark_is_kept_if_the_epoch_began_before_the_mark",
        ),
    ),
    Mutant(
        "a hole in a page shows no difference",
        "anabranch.core.log_following:Following._compared",
        "if comparison.ends_in_hole and page.offset < offset:",
        "if page.offset < 0:",
        (
            "tests/core/test_part_log_copying.py::test_page_that_ends_in_a_hole_does_not_show_that_the_log_differs",
        ),
    ),
    Mutant(
        "a node with a hole leads nobody whose log ends in it",
        "anabranch.core.storage_repair:Repairs._consider",
        "if may_have_it or _end_within(repair, refused):",
        "if may_have_it:",
        (
            "tests/core/test_storage_repair.py::test_node_does_not_lead_while_the_logs_of_the_others_end_within_its_hole",
        ),
    ),
    Mutant(
        "a primary whose write finds a hole places nothing",
        "anabranch.core.part_log:PartLog._saved",
        "if len(standing.members) > 1 and _has_new_hole(before.missing, state.missing):",
        "if len(standing.members) < 0:",
        (
            "tests/core/test_storage_repair.py::test_primary_whose_write_finds_a_hole_places_nothing_while_the_holes_are_looked_up",
        ),
    ),
    Mutant(
        "a primary of an epoch that is over is not followed",
        "anabranch.core.log_following:Following._hear",
        "if message.epoch < standing.epoch or standing.is_primary:",
        "if standing.is_primary:",
        (
            "tests/core/test_part_log.py::test_follower_without_a_primary_does_not_follow_one_of_an_epoch_that_is_over",
        ),
    ),
    Mutant(
        "a node leads once its disk says so",
        "anabranch.core.log_standing:Standing.leads",
        "return self.is_primary and self.state.log_epoch == self.epoch",
        "return self.is_primary",
        (
            "tests/core/test_part_log.py::test_a_node_asks_before_it_stands_and_its_own_vote_is_on_the_disk_before_it_counts",
        ),
    ),
    Mutant(
        "a follower settles what is in its stamped log",
        "anabranch.core.log_following:Following.settle",
        "if state.log_epoch == standing.epoch and not standing.is_primary:",
        "if not standing.is_primary:",
        (
            "tests/core/test_part_log_copying.py::test_a_log_is_stamped_when_it_has_all_that_the_primary_began_with_and_not_before",
        ),
    ),
    Mutant(
        "a follower settles no more than it has",
        "anabranch.core.log_following:Following.settle",
        "standing.high = max(standing.high, min(standing.told_high, state.length))",
        "standing.high = max(standing.high, standing.told_high)",
        (
            "tests/core/test_part_log_copying.py::test_a_follower_copies_and_says_how_far_its_disk_goes",
        ),
    ),
    Mutant(
        "a copy fits the log that it was made for",
        "anabranch.core.log_following:Following.unstage",
        "if staged.base != self._end:",
        "if not staged.base:",
        (
            "tests/core/test_part_log_copying.py::test_a_page_is_void_when_what_we_ordered_ourselves_came_to_the_disk_meanwhile",
        ),
    ),
    Mutant(
        "a frame has one place",
        "anabranch.core.log_following:Following.fetched",
        "if len({(head.chain, head.last) for head in heads}) < len(heads):",
        "if len(heads) < 0:",
        (
            "tests/core/test_part_log_copying.py::test_a_page_that_has_a_frame_twice_is_dropped_and_complained_of_once",
        ),
    ),
    Mutant(
        "receipts are given below the high-water mark",
        "anabranch.core.storage_asks:Asks.settled",
        "for name in [name for name, (end, _) in self._placed.items() if end <= high]:",
        "for name in [name for name, (end, _) in self._placed.items() if end <= high + (1 << 40)]:",
        (
            "tests/core/test_storage_asks.py::test_when_there_is_no_room_who_asks_for_most_makes_some",
        ),
        scenario="random-storage",
        seeds=70,
    ),
    Mutant(
        "places that are taken back are forgotten",
        "anabranch.core.storage_asks:Asks.cut",
        "del self._placed[name]",
        "assert name in self._placed",
        (
            "tests/core/test_storage_storms.py::test_what_is_settled_stays_and_in_the_end_all_is_one",
        ),
    ),
    Mutant(
        "what is above the high-water mark has no offset",
        "anabranch.core.storage_resends:Resends._found",
        "tuple(offset if offset < status.high else MAX_NUMBER for offset in offsets),",
        "tuple(offsets),",
        (
            "tests/core/test_storage_resends.py::test_in_the_order_of_numbers_it_gets_all_but_no_offset_that_may_change",
        ),
    ),
    Mutant(
        "readers see what is below the high-water mark",
        "anabranch.core.storage_resends:Resends.ask",
        "page = Page(resend.part, resend.selection, log.standing.high, PAGE_BYTES)",
        "page = Page(resend.part, resend.selection, log.standing.state.length, PAGE_BYTES)",
        (
            "tests/core/test_storage_resends.py::test_in_the_order_of_offsets_a_reader_gets_what_is_settled",
        ),
    ),
    Mutant(
        "pages of all are bounded",
        "anabranch.core.storage_resends:Resends._problem",
        "is_full = self._pages >= MAX_PAGES",
        "is_full = self._pages < 0",
        (
            "tests/core/test_storage_resends.py::test_one_reader_and_all_together_have_only_so_many_pages_looked_up_at_once",
        ),
    ),
    Mutant(
        "questions of a peer are bounded",
        "anabranch.core.storage_asks:Asks._make_room",
        "return own < MAX_ASKED_PER_PEER",
        "return True",
        (
            "tests/core/test_storage_asks.py::test_questions_are_bounded_and_forgotten_after_a_while",
        ),
    ),
    Mutant(
        "epochs do not leap",
        "anabranch.core.part_log:PartLog.receive",
        "if message.epoch > self.standing.epoch + MAX_LEAP:",
        "if message.epoch < 0:",
        ("tests/core/test_part_log.py::test_an_epoch_that_is_far_ahead_is_not_believed",),
    ),
    Mutant(
        "who cannot write cannot lead",
        "anabranch.core.part_log:PartLog.wake",
        "self._election.postpone(now)",
        "effects += self._election.wake(now)",
        ("tests/core/test_part_log.py::test_a_primary_that_cannot_write_lets_another_one_lead",),
    ),
    Mutant(
        "a primary that is stuck steps down",
        "anabranch.core.part_log:PartLog.wake",
        "self.standing.step_down()",
        "assert self.standing.is_primary",
        ("tests/core/test_part_log.py::test_a_disk_that_never_answers_is_as_bad",),
    ),
    Mutant(
        "commits wait for the disk",
        "anabranch.live.storage.schema:open_for_writing",
        'database.execute("PRAGMA synchronous = FULL")',
        'database.execute("PRAGMA synchronous = OFF")',
        (
            "tests/live/storage/test_sqlite_power.py::test_nothing_that_was_acknowledged_is_lost_in_a_thousand_power_cuts",
        ),
    ),
    Mutant(
        "a frame is kept once",
        "anabranch.live.storage.writes:_keep",
        "if name not in taken:",
        "if name:",
        ("tests/contract/test_store.py::test_a_frame_gets_one_place_however_often_it_comes",),
    ),
    Mutant(
        "a frame is placed once",
        "anabranch.live.storage.writes:_order",
        "if name not in taken:",
        "if name:",
        ("tests/contract/test_store.py::test_a_frame_gets_one_place_however_often_it_comes",),
    ),
    Mutant(
        "a copy with a frame twice is refused",
        "anabranch.live.storage.writes:_copy",
        "if name in taken:",
        "if not name:",
        (
            "tests/contract/test_store.py::test_nothing_is_done_of_a_write_that_gives_a_frame_a_second_place",
        ),
    ),
    Mutant(
        "a promise is kept on the disk",
        "anabranch.live.storage.writes:_promise",
        "log.epoch, log.voted = write.epoch, write.voted",
        "log.epoch = write.epoch",
        ("tests/contract/test_store.py::test_both_stores_say_the_same",),
    ),
    Mutant(
        "the high-water mark does not fall",
        "anabranch.live.storage.writes:_settle",
        "log.high = max(log.high, write.high)",
        "log.high = write.high",
        ("tests/contract/test_store.py::test_both_stores_say_the_same",),
    ),
)
