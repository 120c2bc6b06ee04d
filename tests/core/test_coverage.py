"""Offsets that have come, and those that have not."""

from anabranch.core.coverage import Coverage, in_all
from anabranch.core.messages.storage import Selection, Span


def test_a_range_that_came_whole_lacks_nothing() -> None:
    coverage = Coverage(Selection(start=5, end=12))
    coverage.take(4, 3)  # its first message is trimmed
    coverage.take(7, 5)
    assert coverage.ended(100) == ""
    assert Coverage(Selection(start=5)).ended(5) == ""


def test_what_is_deleted_at_the_beginning_in_between_or_wholly_is_named() -> None:
    late = Coverage(Selection(end=9))
    late.take(3, 1)
    assert late.ended(4) == "offsets 0 to 2 are not there any more"
    torn = Coverage(Selection(end=9))
    torn.take(0, 1)
    torn.take(2, 1)
    assert torn.ended(3) == "offsets 1 to 1 are not there any more"
    assert Coverage(Selection(end=2)).ended(3) == "offsets 0 to 1 are not there any more"


def test_where_not_all_was_wanted_nothing_is_counted() -> None:
    for wanted in (
        Selection(),
        Selection(last=2),
        Selection(by_number=True),
        Selection(whose=b"x" * 20),
    ):
        coverage = Coverage(wanted)
        coverage.take(9, 1)
        assert coverage.ended(20) == ""


def test_in_all_has_the_offsets_that_every_list_has() -> None:
    one, two = [Span(0, 5), Span(8, 12), Span(20, 21)], [Span(3, 10), Span(20, 30)]
    assert in_all([one, two]) == in_all([two, one]) == [Span(3, 5), Span(8, 10), Span(20, 21)]
    assert in_all([one]) == one
    assert in_all([one, two, []]) == in_all([]) == []
