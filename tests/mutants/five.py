"""The five faults of storage that simulated disks were built to see, each brought back."""

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
        scenario="random-storage",
        seeds=100,
    ),
    Mutant(
        "a page names what it lacks",
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
)
