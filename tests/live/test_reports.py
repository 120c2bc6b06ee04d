"""Reports in turn: nobody is left out, and no turn is longer than it may be."""

from anabranch.core.ids import StreamPart
from anabranch.live.reports import MAX_AT_ONCE, Turns


def parts(count: int) -> list[StreamPart]:
    return sorted(StreamPart(f"{'0' * 40}/{index:04}", 0) for index in range(count))


def test_few_parts_are_reported_all_every_time() -> None:
    turns, few = Turns(), parts(MAX_AT_ONCE)
    assert [turns.take(few), turns.take(few)] == [few, few]
    assert turns.take([]) == []


def test_many_parts_take_turns_and_each_has_its_own() -> None:
    turns, many = Turns(), parts(2 * MAX_AT_ONCE + MAX_AT_ONCE // 2)
    taken = [turns.take(many) for _ in range(5)]
    assert [len(each) for each in taken] == [MAX_AT_ONCE] * 5
    assert [part for each in taken for part in each] == many * 2


def test_turns_go_on_where_they_were_when_parts_come_and_go() -> None:
    turns, many = Turns(), parts(3 * MAX_AT_ONCE)
    assert list(turns.take(many)) == many[:MAX_AT_ONCE]
    left = many[: MAX_AT_ONCE - 10] + many[MAX_AT_ONCE:]  # among them the last that was taken
    assert list(turns.take(left)) == many[MAX_AT_ONCE : 2 * MAX_AT_ONCE]
    assert list(turns.take(many)) == many[2 * MAX_AT_ONCE :]
