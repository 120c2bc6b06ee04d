"""What waits for the past to end: bounded, and never without a trace."""

from typing import Any

from anabranch.core import held_live
from anabranch.core.frames import peek
from anabranch.core.held_live import HeldLive, Live
from machines import SIGNERS, START, Chain


def live(frame: bytes) -> Live:
    """Let a frame come."""
    return peek(frame), frame, 1, None, START


def test_frames_are_handed_over_once_and_in_the_order_in_which_they_came() -> None:
    held, one, other = HeldLive(), Chain(SIGNERS[1]), Chain(SIGNERS[2])
    came = [live(frame) for frame in (one.frame(), other.frame(), one.frame())]
    for each in (*came, came[0]):
        held.hold(each)
    assert held.take() == (came, {})
    assert held.take() == ([], {})
    assert {size for size, _ in held.sizes().values()} == {0}


def test_what_is_too_much_is_forgotten_but_not_that_it_came(monkeypatch: Any) -> None:
    monkeypatch.setattr(held_live, "MAX_WAITING_FRAMES", 2)
    held, chain = HeldLive(), Chain(SIGNERS[1])
    before = peek(chain.frame())
    came = [live(chain.frame(b"a", b"b")) for _ in range(5)]
    for each in came:
        held.hold(each)
    assert held.sizes()["live frames before the history"] == (2, 2)
    assert all(held.had(head) for head, *_ in came)
    assert not held.had(before)
    assert not held.had(peek(chain.frame()))
    assert not held.had(peek(Chain(SIGNERS[2]).frame()))
    frames, forgotten = held.take()
    assert frames == came[3:]
    assert forgotten == {before.chain: (before.last, came[2][0].last)}


def test_bytes_are_bounded_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(held_live, "MAX_WAITING_BYTES", 1_000)
    held, chain = HeldLive(), Chain(SIGNERS[1])
    for _ in range(5):
        held.hold(live(chain.frame(bytes(400))))
    count, size = (
        held.sizes()[f"live {what} before the history"][0] for what in ("frames", "bytes")
    )
    assert count == 1
    assert 400 < size <= 1_000
