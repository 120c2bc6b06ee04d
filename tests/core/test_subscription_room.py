"""What waits behind gaps has so much room: who goes on without what it lacks, and who does not."""

from typing import Any

from anabranch.core import subscription as module
from anabranch.core.machine import Effect, Missed
from anabranch.core.subscription import NO_ROOM
from core.test_subscription import Reading, delivered, make, missed
from machines import SIGNERS, START, Chain, head


def test_when_there_is_no_room_who_comes_and_has_most_goes_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_FRAMES", 3)
    reading = Reading()
    one, ours = make(3)
    other, theirs = make(5, Chain(SIGNERS[8]))
    reading.take(ours[0])
    reading.take(theirs[0])
    reading.take(ours[2])
    reading.take(theirs[2])
    assert reading.order.crowded
    assert reading.take(theirs[3]) == []
    assert reading.take(theirs[4]) == [
        missed(other, head(theirs[0]).last, head(theirs[2]).first, NO_ROOM),
        delivered(theirs[2], head(theirs[1]).last),
        delivered(theirs[3], head(theirs[2]).last),
        delivered(theirs[4], head(theirs[3]).last),
    ]
    assert reading.order.missing_since(one.key) == START  # though it is missing for longer
    assert reading.order.sizes()["frames behind gaps"] == (1, 3)
    assert reading.order.sizes()["publishers with gaps"] == (1, 3)
    assert reading.take(ours[1]) == [
        delivered(ours[1], head(ours[0]).last),
        delivered(ours[2], head(ours[1]).last),
    ]
    assert reading.order.sizes()["publishers with gaps"] == (0, 3)


def test_somebody_else_who_has_most_makes_room_for_who_has_little(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_FRAMES", 3)
    reading = Reading()
    one, ours = make(3)
    other, theirs = make(4, Chain(SIGNERS[8]))
    more, last = make(3, Chain(SIGNERS[7]))
    for frame in (ours[0], theirs[0], last[0], ours[2], theirs[2], theirs[3]):
        reading.take(frame)
    effects = reading.take(last[2])
    assert effects[0] == missed(other, head(theirs[0]).last, head(theirs[2]).first, NO_ROOM)
    assert effects[1:] == [
        delivered(theirs[2], head(theirs[1]).last),
        delivered(theirs[3], head(theirs[2]).last),
    ]
    missing = [reading.order.missing_since(each.key) for each in (one, other, more)]
    assert missing == [START, None, START]


def test_what_is_missing_next_in_a_chain_is_not_the_oldest_gap(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_FRAMES", 3)
    reading = Reading()
    chains = [make(9, Chain(SIGNERS[9], number=1 + i)) for i in range(2)]
    (one, ours), (other, theirs) = chains
    for frame in (ours[0], theirs[0], ours[2], theirs[2]):
        assert reading.order.missing_since(head(frame).chain) is None
        reading.take(frame)
    reading.take(ours[4])
    given_up: list[Any] = [reading.take(ours[6]), reading.take(theirs[4])]
    assert [effects[0].chain for effects in given_up] == [one.key, other.key]


def test_bytes_are_bounded_too(monkeypatch: Any) -> None:
    chain, frames = make(4)
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", len(frames[0]) * 2 - 1)
    reading = Reading()
    reading.take(frames[0])
    assert reading.take(frames[2]) == []
    given_up: list[Any] = reading.take(frames[3])
    first, second, third = given_up
    assert first == missed(chain, head(frames[0]).last, head(frames[2]).first, NO_ROOM)
    assert (second.frame, third.frame) == (frames[2], frames[3])
    assert reading.order.sizes()["bytes behind gaps"][0] == 0


def test_one_that_leaves_out_much_does_not_spoil_the_order_of_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_FRAMES", 8)
    reading, (honest, frames) = Reading(), make(3)
    reading.take(frames[0])
    reading.take(frames[2])
    told: list[Effect] = []
    for life in range(5):  # in one chain or in many, they are its own
        flood = Chain(SIGNERS[8], number=1 + life)
        for frame in [flood.frame(at=START + i) for i in range(20)][::2]:
            told += reading.take(frame)
    lost = {effect.chain for effect in told if type(effect) is Missed}
    assert lost
    assert honest.key not in lost
    assert len(reading.take(frames[1])) == 2
