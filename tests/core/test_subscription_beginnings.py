"""Chains that begin anew, and those that go on after a silence: no gap is seen where none is."""

from anabranch.core.duplicates import NEW, SEEN, Budget, Duplicates
from anabranch.core.frames import build
from anabranch.core.ids import chain_key, number_of, part_key
from anabranch.core.machine import Deliver, Draft, Effect
from anabranch.core.subscription import GAP_WAIT_S, Subscription
from machines import NODES, PART, SIGNERS, START, head

CHAIN = chain_key(SIGNERS[9].node, 1)


def at(seconds: float) -> int:
    return number_of(int((START + seconds) * 1000), 0)


def frame(previous: int, *numbers: int) -> bytes:
    drafts = [(number, Draft(b"x")) for number in numbers]
    return build(part_key(PART), CHAIN, previous, drafts, SIGNERS[9].sign)


class Reading:
    """Who reads in order, and the duplicate detector before it."""

    def __init__(self) -> None:
        self.missing: list[object] = []
        self.seen = Duplicates(Budget(), at(-60))
        self.order = Subscription(
            7, PART, START, self._deliver, lambda *found: self.missing.append(found)
        )

    def _deliver(self, head, frame, hops, sender, now, after, cut) -> list[Effect]:  # type: ignore[no-untyped-def]
        return [Deliver(PART, head, frame, hops, b"", 7, after)]

    def come(self, frame: bytes, seconds: float) -> list[int]:
        """Let a frame come over a link; return the numbers that are delivered."""
        top = head(frame)
        verdict = self.seen.check(top.chain, top.previous, top.first, top.last)
        if verdict is not NEW:
            assert verdict is SEEN
            return []
        self.seen.mark(top.chain, top.previous, top.last)
        done = self.order.take(top, frame, 1, NODES[1], START + seconds)
        return [each.head.last for each in done if type(each) is Deliver]


def test_a_chain_that_begins_anew_with_higher_numbers_has_no_gap() -> None:
    reading = Reading()
    one = [frame(0, at(1), at(1) + 1), frame(at(1) + 1, at(1) + 2)]
    two = [frame(0, at(90)), frame(at(90), at(90) + 1)]
    for each in (*one, *two):
        assert reading.come(each, 100) == [head(each).last]
    assert [reading.come(each, 100) for each in (*one, *two)] == [[]] * 4
    assert reading.missing == []
    assert reading.order.whole


def test_what_is_late_before_a_chain_goes_on_comes_first() -> None:
    """A batch that names the end of the one before loses nothing that is still on its way."""
    reading = Reading()
    one = [frame(0, at(1)), frame(at(1), at(1) + 1)]
    two = frame(at(1) + 1, at(90))
    assert reading.come(one[0], 1) == [at(1)]
    assert reading.come(two, 90) == []
    assert len(reading.missing) == 1
    assert reading.order.missing(CHAIN, START + 90 + GAP_WAIT_S) is not None  # and is asked for
    assert reading.come(one[1], 91) == [at(1) + 1, at(90)]
    assert reading.order.whole


def test_a_reader_who_came_between_takes_a_chain_as_it_goes_on() -> None:
    reading = Reading()
    assert reading.come(frame(at(-3_000), at(5)), 5) == [at(5)]
    assert reading.missing == []
