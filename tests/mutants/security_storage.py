"""Rows of docs/security.md about comparisons and repairs of storage nodes."""

from mutants.mutation import Mutant, Row
from mutants.security import (
    A_NEIGHBOUR_OF_A_STORAGE_NODE,
    A_STORAGE_NODE,
)

SECURITY_STORAGE = (
    Mutant(
        "a claim of damage is checked elsewhere",
        "anabranch.core.replay:Replay._lacks",
        "if all(each.node in self._lackers or self._is_absent(each, now) for each in keepers):",
        "if keepers:",
        (
            "tests/core/test_replay_damage.py::test_a_node_that_claims_damage_where_there_is_none_hides_nothing",
        ),
        row=Row(
            A_STORAGE_NODE,
            "claims that a part of the log is damaged",
            "the others are asked; only what nobody sends is reported as lost",
        ),
    ),
    Mutant(
        "claims are honoured",
        "anabranch.core.storage_comparison:Comparisons._heard_frames",
        "if is_short:",
        "if group.came < 0:",
        (
            "tests/core/test_storage_comparison.py::test_a_claim_that_is_not_honoured_costs_the_link",
        ),
        row=Row(
            A_NEIGHBOUR_OF_A_STORAGE_NODE,
            "claims frames that it does not have, in a comparison",
            "a claim changes nothing: only whole frames count, with the signature of a permitted publisher; if the frames do not come, it loses its link",
        ),
    ),
    Mutant(
        "compared frames are verified",
        "anabranch.core.storage_comparison:Comparisons._is_good",
        "if not self._verified.check(head, frame):",
        "if not frame:",
        ("tests/core/test_storage_comparison.py::test_a_forged_frame_costs_the_link",),
        row=Row(
            A_NEIGHBOUR_OF_A_STORAGE_NODE,
            "hands over forged frames, or frames that were not asked for",
            "nothing of that page is taken, and it loses its link",
        ),
    ),
    Mutant(
        "comparisons are bounded",
        "anabranch.core.storage_comparison:Comparisons._end_report",
        "if round_.more and round_.reports < MAX_REPORTS:",
        "if round_.more:",
        (
            "tests/core/test_storage_comparison.py::test_a_member_whose_reports_do_not_end_is_asked_for_so_many_of_them",
        ),
        row=Row(
            A_NEIGHBOUR_OF_A_STORAGE_NODE,
            "claims without an end, sends false digests, or does not answer",
            "one comparison at a time, 16 reports in each, and pauses of up to 5 minutes between those that bring nothing",
        ),
    ),
    Mutant(
        "compared frames are of who may publish",
        "anabranch.core.storage_comparison:Comparisons._problem_with",
        "if not self._registry.permits(log.part, head.publisher, now):",
        "if not head.publisher:",
        (
            "tests/core/test_storage_comparison.py::test_a_removed_publisher_cannot_add_to_the_past_with_an_accomplice",
        ),
        row=Row(
            A_NEIGHBOUR_OF_A_STORAGE_NODE,
            "hands over frames of a publisher that may not publish, such as backdated frames of a removed one",
            "not taken, whatever time they name",
        ),
    ),
    Mutant(
        "compared frames of a publisher are bounded",
        "anabranch.core.storage_comparison:Comparisons._allows",
        "if allowance.left < size:",
        "if allowance.left < 0 * size - 1e18:",
        (
            "tests/core/test_storage_comparison.py::test_of_one_publisher_only_so_many_bytes_are_taken_at_once",
        ),
        row=Row(
            A_NEIGHBOUR_OF_A_STORAGE_NODE,
            "hands over very much of one publisher",
            "16 MiB at once, 1 MiB a second after that; other publishers' frames are taken",
        ),
    ),
    Mutant(
        "entries lead to the log behind the hole",
        "anabranch.live.storage.holes:fill",
        "is_wrong = end == hole.end and reached != hash_at(database, log, hole.end)",
        "is_wrong = not reached",
        ("tests/live/storage/test_damage.py::test_wrong_entries_do_not_stay",),
        row=Row(
            A_STORAGE_NODE,
            "sends false entries to one that repairs its log",
            "each frame's signature is checked, and the hash behind the hole proves the places; else all are dropped",
        ),
    ),
)
