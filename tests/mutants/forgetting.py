"""Disks that forget: records, recovery, marks, and logs that disagree."""

from mutants.mutation import Mutant

RECOVERY = "tests/core/test_log_recovery.py::"
MARKS = "tests/core/test_log_marks.py::"
FORGETTING_NODES = "tests/sim/test_disk_faults_forgetting.py::"
RECORD = "tests/live/storage/test_record.py::"

FORGETTING = (
    Mutant(
        "nothing is acknowledged before it is recorded",
        "anabranch.live.storage.sqlite:SqliteLogStore._recorded",
        "self._unrecorded |= changes",
        "self._unrecorded = {}",
        (
            f"{RECORD}test_record_has_what_the_log_has_when_a_write_returns",
            f"{RECORD}test_log_that_is_older_than_its_record_owes_what_it_had",
        ),
    ),
    Mutant(
        "a record is lowered before its log is cut",
        "anabranch.live.storage.sqlite:SqliteLogStore.write",
        "self._record_file.save(lowered)",
        "pass",
        (f"{RECORD}test_record_is_lowered_before_a_log_is_cut_and_raised_after_that",),
    ),
    Mutant(
        "a record stays while its log is below it",
        "anabranch.core.log_record:Records._raised",
        "if state.rank < record.rank:",
        "if state.rank < (0, 0):",
        (f"{RECORD}test_log_that_is_older_than_its_record_owes_what_it_had",),
    ),
    Mutant(
        "a promise that the log forgot is kept by its record",
        "anabranch.core.log_record:Records.state",
        "if record.epoch > state.epoch:",
        "if record.epoch < 0:",
        (f"{RECOVERY}test_promise_that_the_log_forgot_is_kept_by_its_record",),
    ),
    Mutant(
        "a record that is gone is not made from the log",
        "anabranch.live.storage.sqlite:SqliteLogStore._open_record",
        "if file.is_lost or (file.is_new and is_marked):",
        "if file.is_lost:",
        (f"{RECORD}test_record_that_is_gone_or_damaged_forces_recovery_from_the_others",),
    ),
    Mutant(
        "another log of the recorded length is not trusted",
        "anabranch.core.log_record:Records.compare",
        "if found and found != record.hash:",
        "if found and not record.hash:",
        (f"{RECORD}test_log_of_the_recorded_length_that_is_another_one_is_not_trusted",),
    ),
    Mutant(
        "a node below its record does not vote",
        "anabranch.core.log_recovery:Recovery.may_vote",
        "if standing.is_recovering or self._since is None:",
        "if self._since is None:",
        (f"{RECOVERY}test_log_below_its_record_gets_no_vote_from_its_node_and_does_not_lead",),
    ),
    Mutant(
        "a candidate that learns that it has forgotten does not lead",
        "anabranch.core.log_election:Election._count",
        "if standing.is_recovering:  # which has come to light meanwhile",
        "if standing.epoch < 0:",
        (f"{RECOVERY}test_candidate_that_learns_of_its_own_later_mark_does_not_lead",),
    ),
    Mutant(
        "a node below its record asks not to be counted",
        "anabranch.core.log_following:Following._fetch_at",
        "log_epoch = 0 if standing.is_recovering else standing.state.log_epoch",
        "log_epoch = standing.state.log_epoch",
        (f"{RECOVERY}test_follower_below_its_record_says_so_and_is_not_counted",),
    ),
    Mutant(
        "only stamped logs are counted",
        "anabranch.core.log_leading:Leading._compare",
        "if offset >= standing.begin and fetch.log_epoch == standing.epoch:",
        "if offset >= standing.begin:",
        (f"{RECOVERY}test_leader_counts_only_followers_whose_log_is_stamped_with_its_epoch",),
    ),
    Mutant(
        "what a follower had before it forgot is not counted",
        "anabranch.core.log_leading:Leading.fetch",
        "follower.durable = -1",
        "pass",
        (f"{RECOVERY}test_follower_that_has_forgotten_is_counted_no_more_until_it_is_whole",),
    ),
    Mutant(
        "a node asks the others before its first vote",
        "anabranch.core.log_recovery:Recovery.may_vote",
        "return now >= self._since + wait_s and (candidate == standing.me or candidate in self._told)",
        "return True",
        (f"{RECOVERY}test_node_asks_all_others_before_its_first_vote",),
    ),
    Mutant(
        "an own mark proves an old copy",
        "anabranch.core.log_recovery:Recovery.take",
        "self._remember(answer.mark.epoch, answer.mark.length)",
        "pass",
        (
            f"{RECOVERY}test_own_mark_of_later_proves_that_a_node_was_restored_from_an_old_copy",
            f"{FORGETTING_NODES}test_old_backup_that_nobody_flagged_is_known_from_the_marks_of_others",
        ),
    ),
    Mutant(
        "marks before the recorded promise say nothing",
        "anabranch.core.log_recovery:Recovery._remember",
        "if self._epoch > epoch:",
        "if self._epoch < 0:",
        (
            f"{RECOVERY}test_mark_of_an_epoch_before_the_recorded_promise_says_nothing_against_a_log",
        ),
    ),
    Mutant(
        "a majority of the others says how far a restored log must come",
        "anabranch.core.log_recovery:Recovery._hear_majority",
        "if not others or len(whole) <= len(others) // 2:",
        "if not whole:",
        (f"{RECOVERY}test_restored_node_waits_for_a_majority_of_the_others",),
    ),
    Mutant(
        "logs that have forgotten say nothing of others",
        "anabranch.core.log_recovery:Recovery._hear_majority",
        "whole = [told for node, told in self._told.items() if node in others and told.is_whole]",
        "whole = [told for node, told in self._told.items() if node in others]",
        (f"{RECOVERY}test_restored_node_waits_for_a_majority_of_the_others",),
    ),
    Mutant(
        "a loss is accepted after the others were asked",
        "anabranch.core.log_recovery:Recovery._accept",
        "if is_early or is_unknown or lost is None:",
        "if lost is None:",
        (
            f"{RECOVERY}test_loss_is_not_accepted_while_another_node_has_more",
            f"{FORGETTING_NODES}test_two_of_three_that_forgot_accept_no_loss_while_the_third_has_all",
        ),
    ),
    Mutant(
        "marks of an accepted loss are void",
        "anabranch.core.log_recovery:Recovery._accept",
        "standing.promise(standing.epoch + 1, NOBODY)\nself._epoch = standing.epoch",
        "pass",
        (
            f"{RECOVERY}test_forgetful_nodes_copy_from_each_other_without_a_leader_until_a_loss_is_accepted",
            f"{FORGETTING_NODES}test_two_of_three_that_forgot_without_the_third_go_on_after_accept_loss",
        ),
    ),
    Mutant(
        "an accepted loss is recorded",
        "anabranch.core.log_record:_told",
        "losses = (*record.losses, write.loss)[-MAX_LOSSES:]",
        "losses = record.losses",
        (f"{FORGETTING_NODES}test_only_node_that_forgot_gives_no_offset_until_accept_loss",),
    ),
    Mutant(
        "where nobody leads, forgetful nodes copy from the node that has most",
        "anabranch.core.log_recovery:Recovery._best",
        "best, source = (told.log_epoch, told.length), node",
        "pass",
        (f"{FORGETTING_NODES}test_two_of_three_that_forgot_wait_for_the_third_and_lose_nothing",),
    ),
    Mutant(
        "a log below its record passes no page for the end of all",
        "anabranch.core.log_standing:Standing.is_unsure",
        "return self.is_recovering or (has_just_come and not is_alone)",
        "return has_just_come and not is_alone",
        (f"{FORGETTING_NODES}test_only_node_that_forgot_gives_no_offset_until_accept_loss",),
    ),
    Mutant(
        "a contradicted log is replaced",
        "anabranch.core.log_marks:Marks._judged",
        "standing.contradict()",
        "pass",
        (f"{MARKS}test_log_that_contradicts_marks_of_a_majority_is_replaced",),
    ),
)
