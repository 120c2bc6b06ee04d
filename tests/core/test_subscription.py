"""The order of chains: exact effects, frame by frame."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import subscription as module
from anabranch.core.ids import ChainKey, FrameHead, NodeId, number_of
from anabranch.core.machine import Deliver, Effect, Missed
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.core.subscription import (
    GAP_WAIT_S,
    MAX_ATTEMPTS,
    NOT_FOUND,
    SETTLING_S,
    Cut,
    Missing,
    Subscription,
)
from machines import NODES, PART, SIGNERS, START, Chain, head

LATER = START + GAP_WAIT_S


class Reading:
    """A subscription, and what it noticed."""

    def __init__(self, opened_at: float = START) -> None:
        self.noticed: list[tuple[ChainKey, float]] = []
        self.order = Subscription(
            7, PART, opened_at, self._deliver, lambda *found: self.noticed.append(found)
        )

    def _deliver(
        self,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId | None,
        now: float,
        after: int,
        cut: Cut,
    ) -> list[Effect]:
        return [Deliver(PART, head, frame, hops, b"", 7, after, cut.upto, cut.skip, cut.most)]

    def take(self, frame: bytes, now: float = START) -> list[Effect]:
        return self.order.take(head(frame), frame, 2, NODES[1], now)


def delivered(frame: bytes, after: int) -> Deliver:
    return Deliver(PART, head(frame), frame, 2, b"", 7, after)


def missed(chain: Chain, after: int, before: int, reason: str = NOT_FOUND) -> Missed:
    return Missed(7, PART, chain.key, after, before, reason)


def make(count: int, chain: Chain | None = None) -> tuple[Chain, list[bytes]]:
    chain = chain or Chain(SIGNERS[9])
    return chain, [chain.frame(b"a", b"b", at=START + i) for i in range(count)]


def test_what_comes_in_order_is_delivered_at_once() -> None:
    reading, (_, frames) = Reading(), make(3)
    for before, frame in zip([None, *frames], frames, strict=False):
        after = head(before).last if before else 0
        assert reading.take(frame) == [delivered(frame, after)]
    assert reading.noticed == []
    assert reading.order.whole


def test_a_copy_is_dropped() -> None:
    reading, (_, frames) = Reading(), make(2)
    reading.take(frames[0])
    assert reading.take(frames[0]) == []
    reading.take(frames[1])
    assert reading.take(frames[0]) == []


def test_what_overtakes_waits_for_what_it_overtook() -> None:
    reading, (chain, frames) = Reading(), make(4)
    reading.take(frames[0])
    assert reading.take(frames[3], START + 1) == []
    assert reading.take(frames[3], START + 1) == []
    assert reading.take(frames[2], START + 2) == []
    assert reading.noticed == [(chain.key, START + 1), (chain.key, START + 2)]
    assert not reading.order.whole
    assert reading.order.sizes()["frames behind gaps"][0] == 2
    lasts = [head(frame).last for frame in frames]
    expected = [delivered(frames[i], lasts[i - 1]) for i in (1, 2, 3)]
    assert reading.take(frames[1]) == expected
    assert reading.order.whole
    assert [size for size, _ in reading.order.sizes().values()] == [1, 0, 0, 0]


def test_of_a_frame_that_overlaps_only_the_rest_is_delivered() -> None:
    reading, chain = Reading(), Chain(SIGNERS[9])
    first = chain.frame(b"a", b"b")
    chain.newest = head(first).first
    second = chain.frame(b"B", b"c", b"d")  # it follows the first message of the first frame
    reading.take(first)
    assert reading.take(second) == [delivered(second, head(first).last)]


def test_what_is_missing_is_named_when_it_is_missing_for_long_enough() -> None:
    reading, (chain, frames) = Reading(), make(6)
    lasts = [head(frame).last for frame in frames]
    reading.take(frames[0])
    assert reading.order.missing(chain.key, LATER) is None
    assert reading.order.missing_since(chain.key) is None
    reading.take(frames[2], START)
    reading.take(frames[4], START + 1)
    assert reading.order.missing_since(chain.key) == START
    assert reading.order.missing(chain.key, LATER - 0.01) is None
    assert reading.order.missing(chain.key, LATER) == Missing(lasts[0], lasts[1], 0, True)
    assert reading.order.missing(chain.key, LATER + 1) == Missing(lasts[0], lasts[3], 0, True)
    # It is the frames before which something is missing that count, not all that wait.
    reading.take(frames[5], START)
    assert reading.order.missing(chain.key, LATER + 1) == Missing(lasts[0], lasts[3], 0, True)


def test_only_what_is_missing_is_lacked() -> None:
    reading, (_, frames) = Reading(), make(4)
    reading.take(frames[0])
    assert not reading.order.lacks(head(frames[1]))
    reading.take(frames[2])
    assert [reading.order.lacks(head(frame)) for frame in frames] == [False, True, False, True]


def test_after_so_many_attempts_it_goes_on_and_says_so() -> None:
    reading, (chain, frames) = Reading(), make(4)
    lasts = [head(frame).last for frame in frames]
    reading.take(frames[0])
    reading.take(frames[2])
    for _ in range(MAX_ATTEMPTS - 1):
        assert reading.order.fail(chain.key, lasts[1], LATER, 1, LATER) == []
    assert reading.order.fail(chain.key, lasts[1], LATER, 1, LATER) == [
        missed(chain, lasts[0], head(frames[2]).first),
        delivered(frames[2], lasts[1]),
    ]
    assert reading.take(frames[3]) == [delivered(frames[3], lasts[2])]
    assert reading.take(frames[1]) == []  # too late
    assert reading.order.fail(chain.key, lasts[3], LATER, 1, LATER) == []


def test_an_attempt_counts_only_for_what_it_asked_for() -> None:
    reading, (chain, frames) = Reading(), make(6)
    lasts = [head(frame).last for frame in frames]
    reading.take(frames[0])
    reading.take(frames[2], START)
    reading.take(frames[4], START + 10)
    assert reading.order.fail(chain.key, lasts[1], START + 10, MAX_ATTEMPTS, START + 10) == [
        missed(chain, lasts[0], head(frames[2]).first),
        delivered(frames[2], lasts[1]),
    ]
    assert reading.order.missing(chain.key, START + 20) == Missing(lasts[2], lasts[3], 0, True)
    # One that began before the frame came did not ask for what is missing before it.
    assert reading.order.fail(chain.key, lasts[3], START + 11, MAX_ATTEMPTS, START + 11) == []
    assert not reading.order.whole


def test_what_was_not_asked_for_is_not_given_up() -> None:
    reading, (chain, frames) = Reading(), make(6)
    lasts = [head(frame).last for frame in frames]
    for at in (0, 2, 4):
        reading.take(frames[at], START)
    reading.order.fail(chain.key, lasts[1], LATER, MAX_ATTEMPTS, LATER)
    assert reading.order.missing(chain.key, LATER) == Missing(lasts[2], lasts[3], 0, True)


def test_a_chain_begins_with_its_first_frame_or_with_what_follows_an_old_one() -> None:
    reading = Reading()
    old = Chain(SIGNERS[8])
    old.frame(at=START - 0.001)
    follower = old.frame()
    assert reading.take(follower) == [delivered(follower, head(follower).previous)]
    new = Chain(SIGNERS[7])
    new.frame(at=START)
    follower = new.frame()
    assert reading.take(follower) == []
    floor = number_of(int(START * 1000), 0)
    lack = Missing(floor - 1, head(follower).previous, 0, False)
    assert reading.order.missing(new.key, LATER) == lack


def test_a_beginning_that_nobody_has_is_given_up_silently_and_soon() -> None:
    reading, (chain, frames) = Reading(), make(3)
    assert reading.take(frames[1]) == []
    upto = head(frames[0]).last
    assert reading.order.fail(chain.key, upto, LATER, 1, LATER) == [delivered(frames[1], upto)]
    assert reading.take(frames[2]) == [delivered(frames[2], head(frames[1]).last)]


def test_a_beginning_that_comes_is_delivered() -> None:
    reading, (_, frames) = Reading(), make(2)
    reading.take(frames[1])
    after = number_of(int(START * 1000), 0) - 1
    last = head(frames[0]).last
    assert reading.take(frames[0]) == [delivered(frames[0], after), delivered(frames[1], last)]


def test_who_is_there_for_long_is_told_of_a_beginning_that_did_not_come() -> None:
    reading, chain = Reading(START - SETTLING_S), Chain(SIGNERS[9])
    first, second = chain.frame(), chain.frame(at=START + 1)
    assert reading.take(second) == []
    found = reading.order.missing(chain.key, LATER)
    assert found is not None
    assert found.sure
    given_up = reading.order.fail(chain.key, head(first).last, LATER, MAX_ATTEMPTS, LATER)
    assert [type(effect) for effect in given_up] == [Missed, Deliver]


def test_where_there_is_storage_one_can_insist_on_what_was_published_since() -> None:
    for opened_at, told in ((START - 1, True), (START + 0.001, False)):
        reading, (chain, frames) = Reading(opened_at), make(2)
        reading.order.read_past(b"", 1)
        reading.take(frames[1])
        reading.order.insist(chain.key)
        last = head(frames[0]).last
        given_up = reading.order.fail(chain.key, last, LATER, MAX_ATTEMPTS, LATER)
        assert [type(effect) for effect in given_up] == [Missed, Deliver][not told :]


def test_the_chain_that_was_quiet_longest_is_forgotten_and_can_go_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_CHAINS", 2)
    for overlaps in (False, True):
        reading = Reading()
        chains = [Chain(SIGNERS[i]) for i in (7, 8, 9)]
        first = chains[0].frame(b"a", b"b", at=START + 5)
        reading.take(first)
        reading.take(chains[1].frame(at=START + 5))
        if overlaps:
            chains[0].newest = head(first).first
        reading.take(chains[0].frame(b"b", b"c", at=START + 5))
        reading.take(chains[2].frame(at=START + 5))
        assert reading.order.sizes()["chains in order"] == (2, 2)
        assert reading.take(first) == []  # this one is known: the second was quiet longest
        follower = chains[1].frame(at=START + 6)
        assert reading.take(follower) == [delivered(follower, head(follower).previous)]


def test_of_the_history_a_chain_may_begin_anywhere_and_what_is_not_wanted_is_cut_off() -> None:
    reading, (chain, frames) = Reading(), make(4)
    cut = Cut(5, 9, 1, 2)
    first = reading.order.take_past(head(frames[1]), frames[1], NODES[1], cut, True, START)
    after = head(frames[1]).previous
    assert first == [Deliver(PART, head(frames[1]), frames[1], 1, b"", 7, after, 9, 1, 2)]
    # A frame that waits is cut as well when its time comes.
    assert reading.order.take_past(head(frames[3]), frames[3], NODES[1], cut, True, START) == []
    last = head(frames[2]).last
    assert reading.take(frames[2]) == [
        delivered(frames[2], head(frames[1]).last),
        Deliver(PART, head(frames[3]), frames[3], 1, b"", 7, last, 9, 1, 2),
    ]
    assert chain.newest == head(frames[3]).last


def test_after_a_history_what_is_above_its_floor_should_be_here() -> None:
    reading, (chain, frames) = Reading(START + 1000), make(3)
    reading.order.read_past(bytes(SIGNERS[9].node), head(frames[0]).last + 1)
    assert reading.take(frames[2]) == []
    found = Missing(head(frames[0]).last, head(frames[1]).last, 0, False)
    assert reading.order.missing(chain.key, LATER) == found
    other, theirs = make(2, Chain(SIGNERS[8]))
    assert reading.take(theirs[1]) == [delivered(theirs[1], head(theirs[0]).last)]
    assert other.newest == head(theirs[1]).last


def test_what_is_known_to_exist_is_missing() -> None:
    reading, (chain, frames) = Reading(), make(3)
    lasts = [head(frame).last for frame in frames]
    reading.take(frames[0])
    assert reading.order.expect(chain.key, 0, lasts[0], START, START) == []
    assert reading.order.whole
    assert reading.order.expect(chain.key, 0, lasts[1], START, START) == []
    assert reading.order.missing(chain.key, LATER) == Missing(lasts[0], lasts[1], 0, True)
    assert reading.order.lacks(head(frames[1]))
    assert reading.take(frames[1]) == [delivered(frames[1], lasts[0])]
    assert reading.order.whole
    reading.order.expect(chain.key, 0, lasts[2], START, START)
    given_up = reading.order.fail(chain.key, lasts[2], LATER, MAX_ATTEMPTS, LATER)
    assert given_up == [missed(chain, lasts[1], lasts[2] + 1)]
    assert reading.order.whole


def test_what_is_known_to_exist_of_an_unknown_chain_is_missing_however_old_it_is() -> None:
    reading, chain = Reading(), Chain(SIGNERS[9])
    before, *frames = (chain.frame(at=START - 50 + i) for i in range(4))
    after, lasts = head(before).last, [head(frame).last for frame in frames]
    assert reading.order.expect(chain.key, after, lasts[1], START, START) == []
    assert reading.order.missing(chain.key, LATER) == Missing(after, lasts[1], 0, True)
    assert reading.take(frames[2]) == []  # it must not overtake them
    assert reading.take(frames[0]) == [delivered(frames[0], after)]
    given_up = reading.order.fail(chain.key, lasts[1], LATER, MAX_ATTEMPTS, LATER)
    assert given_up == [
        missed(chain, lasts[0], lasts[1] + 1),
        delivered(frames[2], lasts[1]),
    ]
    assert reading.order.whole


def test_haste_lets_everything_be_asked_for_at_once() -> None:
    reading, (chain, frames) = Reading(), make(3)
    reading.take(frames[0])
    reading.take(frames[2])
    reading.noticed.clear()
    reading.order.hasten(START)
    assert reading.order.missing(chain.key, START) is not None
    ((noticed, since),) = reading.noticed
    assert noticed == chain.key
    assert since + GAP_WAIT_S <= START


def test_without_filling_frames_are_passed_on_as_they_come() -> None:
    reading, (_, frames) = Reading(), make(4)
    past = reading.order.pass_past(head(frames[1]), frames[1], NODES[1], Cut(3), START)
    assert past == [Deliver(PART, head(frames[1]), frames[1], 1, b"", 7, 3, MAX_NUMBER)]
    for frame, expected in ((frames[3], 1), (frames[0], 0), (frames[1], 0), (frames[2], 1)):
        passed = reading.order.pass_on(head(frame), frame, 2, NODES[1], START)
        assert len(passed) == expected
    assert reading.order.whole


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=60),
    gives_up=st.sets(st.integers(0, 59)),
)
def test_any_order_of_arrival_equals_a_dumb_twin(
    arrivals: list[tuple[int, int]], gives_up: set[int]
) -> None:
    reading = Reading()
    chains = [make(10, Chain(SIGNERS[7 + i])) for i in range(3)]
    twin: dict[int, tuple[int, set[int]]] = {}  # how many are done, and which wait
    for _, frames in chains:
        reading.take(frames[0])
    for step, (which, place) in enumerate(arrivals):
        chain, frames = chains[which]
        done, waiting = twin.get(which, (1, set()))
        effects = reading.take(frames[place])
        expected: list[int] = []
        if place >= done:
            waiting.add(place)
        if step in gives_up and waiting and done not in waiting:
            effects += reading.order.fail(chain.key, MAX_NUMBER, LATER, MAX_ATTEMPTS, LATER)
            # Everything that is missing before a frame that waits is given up.
            expected = sorted(waiting)
            done = expected[-1] + 1
            waiting.clear()
        while done in waiting:
            waiting.remove(done)
            expected.append(done)
            done += 1
        twin[which] = (done, waiting)
        frames_out = [effect.frame for effect in effects if type(effect) is Deliver]
        assert frames_out == [frames[i] for i in expected]
        sizes = reading.order.sizes()
        assert sizes["frames behind gaps"][0] == sum(len(rest) for _, rest in twin.values())
