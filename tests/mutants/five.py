"""The five faults of storage that simulated disks were built to see, each brought back.

The second of them, placing frames in the order in which they come, is with its like in order.py.
"""

from mutants.mutation import Mutant

FIVE = (
    Mutant(
        "storage nodes that join compare their frames with others",
        "anabranch.core.storage_comparison:Comparisons.wake",
        "effects += self._begin(peer, now)",
        "effects += []",
        (
            "tests/sim/test_stored_cluster_comparison.py::test_frames_that_are_an_hour_old_are_stored_when_a_storage_node_comes_back",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "a log whose holes cannot be read is not called repaired",
        "anabranch.core.storage_repair:Repairs._found",
        "if answer.problem:",
        "if answer.problem and answer.lacking:",
        (
            "tests/core/test_storage_repair.py::test_log_whose_holes_cannot_be_read_is_not_called_repaired",
        ),
    ),
    Mutant(
        "damage that was found is repaired",
        "anabranch.core.storage_repair:Repairs.add",
        "return [self._disk.find(HolesIn(log.part), partial(self._found, repair))]",
        "return []",
        (
            "tests/core/test_storage_repair.py::test_a_damaged_frame_is_named_asked_of_another_and_filled_in_again",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "one damaged row does not take a whole page away",
        "anabranch.core.storage_resends:Resends._found",
        "if answer.problem or not log.is_active or _lacks_end(resend.selection, answer, log, now):",
        "if answer.problem or answer.missing or not log.is_active:",
        (
            "tests/core/test_storage_repair.py::test_a_damaged_frame_is_named_asked_of_another_and_filled_in_again",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "a page that lacks entries names them",
        "anabranch.core.storage_resends:Resends._found",
        "            answer.missing,",
        "            (),",
        (
            "tests/core/test_storage_repair.py::test_a_damaged_frame_is_named_asked_of_another_and_filled_in_again",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "a log below its record gets no vote from its node",
        "anabranch.core.log_standing:Standing.is_recovering",
        "return is_unknown or self.rank < self.owed or self.is_contradicted",
        "return is_unknown or self.is_contradicted",
        (
            "tests/core/test_log_recovery.py::test_log_below_its_record_gets_no_vote_from_its_node_and_does_not_lead",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "a log that was just opened passes no page for the end of all",
        "anabranch.core.storage_resends:_lacks_end",
        "return is_page and is_end and wanted.end > standing.high and standing.is_unsure(now)",
        "return False",
        (
            "tests/core/test_storage_resends.py::test_log_that_was_just_opened_passes_no_page_for_the_end_of_all",
        ),
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "nothing is placed behind a held frame that the disk has lost",
        "anabranch.live.storage.writes:_order_held",
        "raise GoneError(write.part, name)",
        "continue",
        (
            "tests/contract/test_store.py::test_nothing_is_done_of_a_write_that_places_a_held_frame_which_is_gone",
        ),
    ),
    Mutant(
        "a late first answer hides nothing from a reader",
        "anabranch.core.sweeps:Sweeps._compared",
        "if now > sweep.since + EARLY_S:  # some of it may have been published since then",
        "if now < 0:",
        (
            "tests/core/test_sweeps.py::test_first_answer_that_comes_late_hides_nothing_that_was_published_before_it",
        ),
    ),
    Mutant(
        "a node leads when all others lack every hole",
        "anabranch.core.storage_repair:Repairs._consider",
        "may_have_it = any(node not in by for by in refused for node in others)",
        "may_have_it = any(node not in by for by in refused[:1] for node in others)",
        (
            "tests/core/test_storage_repair.py::test_node_leads_only_when_all_others_lack_every_hole",
        ),
    ),
    Mutant(
        "a storage node that is away may have what others lack",
        "anabranch.core.storage_repair:Repairs._ask",
        "effects = self._consider(repair, others, now)",
        "effects = self._consider(repair, standing.fellows, now)",
        (
            "tests/core/test_storage_repair.py::test_node_with_a_hole_does_not_lead_while_one_that_is_away_may_have_it",
        ),
    ),
    Mutant(
        "unsettled damage that was on no other disk is taken back",
        "anabranch.core.part_log:PartLog._unsettled_damage",
        "return cut if is_unsettled else None",
        "return None",
        (
            "tests/core/test_storage_repair.py::test_new_primary_takes_back_unsettled_damage_that_was_on_no_other_disk",
        ),
    ),
    Mutant(
        "a storage node that cannot read does not refuse entries",
        "anabranch.core.storage_resends:Resends._found_entries",
        "if answer.problem:",
        "if answer.problem and answer.placed:",
        (
            "tests/core/test_storage_repair.py::test_storage_node_that_cannot_read_does_not_say_that_it_lacks_entries",
        ),
    ),
)
