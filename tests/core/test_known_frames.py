"""The frames that came last are known by their heads, and only those."""

from anabranch.core.known_frames import MAX_KNOWN, KnownFrames
from anabranch.core.machine import Deliver, Subscribe, Unsubscribe
from anabranch.core.parts import Part
from machines import NODES, PART, SIGNERS, Chain, copies, data, of, peer, plain_settings

A, B = NODES[1:3]


def state() -> Part:
    hand = peer({PART: plain_settings(A)})
    hand(Subscribe(PART))
    (found,) = hand.machine._parts
    assert isinstance(found, Part)
    return found


def test_the_last_ones_are_known_and_there_is_a_bound() -> None:
    known, part = KnownFrames(), state()
    for number in range(3 * MAX_KNOWN):
        known.add(number.to_bytes(4), part, 1)
        size, bound = known.sizes()["known frames"]
        assert size <= bound == MAX_KNOWN
        last = max(0, number - MAX_KNOWN // 2 + 1).to_bytes(4)
        assert (known.young.get(last) or known.old.get(last)) is not None


def test_a_part_that_was_left_is_forgotten_and_others_are_not() -> None:
    known, one, other = KnownFrames(), state(), state()
    known.add(b"one", one, 1)
    known.add(b"other", other, 1)
    known.forget(one)
    assert list(known.young) == [b"other"]


def test_who_leaves_and_joins_again_does_not_take_copies_for_known() -> None:
    hand, chain = peer({PART: plain_settings(A, B)}), Chain(SIGNERS[9])
    hand(Subscribe(PART))
    hand.link(A, B)
    frame = chain.frame()
    assert of(Deliver, hand(data(A, frame)))
    assert hand(data(B, frame)) == [copies(B, frame)]
    hand(Unsubscribe(PART), Subscribe(PART))
    assert "known frames" not in [n for n, (size, _) in hand.machine.sizes().items() if size]
    assert of(Deliver, hand(data(B, frame)))
