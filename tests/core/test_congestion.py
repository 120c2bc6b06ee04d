"""Slow links: what waits for them, who hears of it, and when it is enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import congestion as module
from anabranch.core.congestion import (
    CUT_AFTER_S,
    DRAIN_SHARE,
    FEW,
    MAX_TOLD,
    MAX_UPSTREAMS,
    MAX_WAITING_BYTES,
    MAX_WAITING_FRAMES,
    PAUSE_MS,
    PAUSE_SHARE,
    TELL_EVERY_S,
    Congestion,
)
from anabranch.core.ids import FrameHead, NodeId, chain_key, part_key
from anabranch.core.machine import Dropped, Effect, Forward
from machines import NODES, OTHER, PART, START

A, B, C = NODES[:3]
KEY = part_key(PART)
CHAIN = chain_key(NODES[9], 1)
EMPTY = {
    "outbox frames": 0,
    "outbox bytes": 0,
    "paused links": 0,
    "neighbours that asked for pauses": 0,
    "upstreams": 0,
    "neighbours told": 0,
}


def forward(number: int, *peers: NodeId, frame: bytes = b"frame") -> Forward:
    """Make a Forward of one message; that the frame is no frame does not matter here."""
    head = FrameHead(KEY, CHAIN, number - 1, number, number, 1)
    return Forward(7, head, [(peer, peer[:1]) for peer in peers], frame)


def congested(*peers: NodeId) -> Congestion:
    congestion = Congestion()
    for peer in peers:
        congestion.full(peer, START)
    return congestion


def keep_back(congestion: Congestion, whole: Forward) -> tuple[Forward | None, list[Effect]]:
    kept = congestion.keep_back(whole)
    return kept.leaving, kept.dropped


def sizes(congestion: Congestion) -> dict[str, int]:
    return {name: size for name, (size, _) in congestion.sizes().items()}


def test_what_meets_no_full_link_passes_as_it_is() -> None:
    whole = forward(1, A, B)
    leaving, dropped = keep_back(congested(C), whole)
    assert leaving is whole
    assert dropped == []


def test_frames_wait_for_the_full_link_only_and_leave_in_their_order() -> None:
    congestion = congested(B)
    assert keep_back(congestion, forward(1, A, B, C)) == (forward(1, A, C), [])
    assert keep_back(congestion, forward(2, B)) == (None, [])
    assert keep_back(congestion, forward(3, B, C)) == (forward(3, C), [])
    assert list(congestion.outboxes) == [B]
    assert congestion.writable(B) == [forward(1, B), forward(2, B), forward(3, B)]
    assert (congestion.outboxes, congestion.wakeup_at) == ({}, None)
    assert congestion.writable(B) == []
    assert sizes(congestion) == EMPTY


def test_what_waits_for_a_link_that_is_gone_is_counted() -> None:
    congestion = congested(A, B)
    congestion.keep_back(forward(1, A, B))
    congestion.keep_back(forward(2, B))
    assert congestion.gone(B, "link-down") == [
        Dropped(forward(1).head, "link-down", B),
        Dropped(forward(2).head, "link-down", B),
    ]
    assert congestion.gone(B, "link-down") == []
    assert congestion.writable(A) == [forward(1, A)]


def test_a_link_may_be_full_for_so_long() -> None:
    congestion = congested(A)
    congestion.full(B, START + 1)
    congestion.full(A, START + 2)  # it still is: its time does not begin anew
    assert congestion.wakeup_at == START + CUT_AFTER_S
    assert congestion.too_long(START + CUT_AFTER_S) == [(A, "link-full")]
    congestion.writable(B)
    assert congestion.too_long(START + 100) == []
    congestion.full(B, START + 100)
    assert congestion.wakeup_at == START + 100 + CUT_AFTER_S


def test_a_copy_from_the_slow_neighbour_is_not_sent_to_it() -> None:
    congestion = congested(A, B)
    for number in (1, 2, 3):
        congestion.keep_back(forward(number, A, B))
    congestion.suppress(A, forward(2).head)
    congestion.suppress(A, forward(9).head)
    congestion.suppress(C, forward(1).head)
    assert congestion.writable(A) == [forward(1, A), forward(3, A)]
    assert len(congestion.writable(B)) == 3


def test_one_frame_waits_once() -> None:
    congestion = congested(A)
    for _ in range(3):
        congestion.keep_back(forward(1, A))
    assert sizes(congestion) == EMPTY | {"outbox frames": 1, "outbox bytes": 5}
    assert congestion.writable(A) == [forward(1, A)]


def test_an_outbox_is_bounded_in_frames_and_the_oldest_go() -> None:
    congestion = congested(A)
    for number in range(1, MAX_WAITING_FRAMES + 1):
        assert keep_back(congestion, forward(number, A)) == (None, [])
    newest = forward(MAX_WAITING_FRAMES + 1, A, B)
    leaving, dropped = keep_back(congestion, newest)
    assert leaving == forward(MAX_WAITING_FRAMES + 1, B)
    assert dropped == [Dropped(forward(1).head, "link-full", A)]
    assert sizes(congestion)["outbox frames"] == MAX_WAITING_FRAMES


def test_an_outbox_is_bounded_in_bytes() -> None:
    congestion, frame = congested(A), bytes(MAX_WAITING_BYTES // 2)
    congestion.keep_back(forward(1, A))
    congestion.keep_back(forward(2, A, frame=frame))
    _, dropped = keep_back(congestion, forward(3, A, frame=frame))
    assert dropped == [Dropped(forward(1).head, "link-full", A)]
    assert sizes(congestion)["outbox bytes"] == MAX_WAITING_BYTES
    _, dropped = keep_back(congestion, forward(4, A))
    assert dropped == [Dropped(forward(2).head, "link-full", A)]
    assert sizes(congestion)["outbox bytes"] == len(frame) + 5


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["keep", "keep", "keep", "suppress", "full", "writable", "gone", "pause", "resume"]
        ),
        st.sampled_from([A, B]),
        st.integers(1, 6),
    )
)


@given(STEPS)
def test_the_bytes_of_an_outbox_are_those_of_its_frames(
    steps: list[tuple[str, NodeId, int]],
) -> None:
    congestion, now = congested(A, B), START
    for word, peer, number in steps:
        now += 0.01
        if word == "pause":
            congestion.pause(peer, KEY, number / 100, number, now)
        elif word == "resume":
            congestion.resumed(now)
        elif word == "keep":
            congestion.keep_back(forward(number, A, B, frame=bytes(number)))
        elif word == "suppress":
            congestion.suppress(peer, forward(number).head)
        elif word == "full":
            congestion.full(peer, now)
        else:
            congestion.writable(peer) if word == "writable" else congestion.gone(peer, "down")
        for outbox in congestion.outboxes.values():
            assert outbox.bytes == sum(len(w.frame) for w in outbox.frames.values())
        assert (congestion.wakeup_at is None) is (not congestion.outboxes)


# --- Pauses ---------------------------------------------------------------------------------


def paused(neighbours: int, seconds: float = 1.0) -> Congestion:
    """Let A ask for a pause in a part with so many neighbours."""
    congestion = Congestion()
    congestion.pause(A, KEY, seconds, neighbours, START)
    return congestion


def test_pause_of_one_link_keeps_back_frames_of_its_part_only() -> None:
    congestion = paused(FEW)
    assert keep_back(congestion, forward(1, A, B)) == (forward(1, B), [])
    elsewhere = Forward(7, FrameHead(part_key(OTHER), CHAIN, 0, 1, 1, 1), [(A, b"a")], b"frame")
    assert keep_back(congestion, elsewhere) == (elsewhere, [])
    assert congestion.wakeup_at == START + 1
    assert congestion.resumed(START + 0.999) == []
    assert congestion.resumed(START + 1) == [forward(1, A)]
    assert (congestion.outboxes, congestion.wakeup_at) == ({}, None)


def test_pause_of_a_full_link_ends_and_its_frames_still_wait() -> None:
    congestion = paused(FEW)
    congestion.full(A, START)
    congestion.keep_back(forward(1, A))
    assert congestion.resumed(START + 1) == []
    assert congestion.writable(A) == [forward(1, A)]
    assert sizes(congestion) == EMPTY | {"neighbours that asked for pauses": 1}


def test_writable_link_that_is_paused_still_keeps_frames() -> None:
    congestion = paused(FEW)
    congestion.full(A, START)
    congestion.keep_back(forward(1, A))
    assert congestion.writable(A) == []
    assert congestion.writable(A) == []
    assert congestion.resumed(START + 1) == [forward(1, A)]


def test_frames_and_pauses_of_a_link_that_is_gone_end_and_its_budget_is_remembered() -> None:
    congestion = paused(FEW)
    congestion.keep_back(forward(1, A))
    assert congestion.gone(A, "link-down") == [Dropped(forward(1).head, "link-down", A)]
    assert (congestion.wakeup_at, sizes(congestion)) == (
        None,
        EMPTY | {"neighbours that asked for pauses": 1},
    )


def paused_share(neighbours: int, for_s: float = 100.0) -> float:
    """Ask for pauses all the time; return the share of the time that the link was paused."""
    congestion, blocked, steps = Congestion(), 0, int(for_s * 1_000)
    for step in range(steps):
        now = START + step / 1_000
        congestion.pause(A, KEY, 1.0, neighbours, now)
        congestion.too_long(now)  # the link is not cut here: only its pauses are counted
        congestion.resumed(now)
        blocked += A in congestion.outboxes
    return blocked / steps


def test_pauses_among_few_neighbours_take_a_share_of_the_time() -> None:
    for neighbours in range(1, FEW):
        assert paused_share(neighbours) <= PAUSE_SHARE + 0.01
    assert paused_share(FEW, CUT_AFTER_S) == 1.0
    assert paused_share(FEW) < 0.35  # it has asked for too much, and is bounded for a while


def test_pauses_among_few_neighbours_take_no_more_if_the_link_ends_again_and_again() -> None:
    congestion, blocked = Congestion(), 0
    for step in range(100_000):
        now = START + step / 1_000
        congestion.pause(A, KEY, 1.0, 1, now)
        congestion.resumed(now)
        blocked += A in congestion.outboxes
        if step % 100 == 99:
            congestion.gone(A, "lost")
    assert blocked / 100_000 <= PAUSE_SHARE + 0.01


def test_neighbours_that_asked_for_pauses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAUSES", 3)
    congestion = Congestion()
    for number in range(10):
        congestion.pause(NodeId(number.to_bytes(20)), KEY, 0.1, FEW, START)
    assert congestion.sizes()["neighbours that asked for pauses"] == (3, 3)


def test_pause_ends_when_half_of_the_outbox_is_taken() -> None:
    congestion, frame = paused(FEW), bytes(MAX_WAITING_BYTES // 8)
    for number in range(1, 5):
        assert congestion.keep_back(forward(number, A, frame=frame)).resumed == []
    kept = congestion.keep_back(forward(5, A, frame=frame))
    assert [resumed.head.last for resumed in kept.resumed] == [1, 2, 3, 4, 5]
    assert (kept.leaving, kept.dropped) == (None, [])
    assert (congestion.outboxes, congestion.wakeup_at) == ({}, None)


def test_link_that_is_paused_for_most_of_the_time_is_cut() -> None:
    congestion, now = Congestion(), START
    while not (cut := congestion.too_long(now)):
        congestion.resumed(now)
        congestion.pause(A, KEY, 0.1, FEW, now)
        now += 0.05
    assert cut == [(A, "link-slow")]
    assert CUT_AFTER_S < now - START < 1.1 * CUT_AFTER_S / (1 - DRAIN_SHARE)


def test_link_that_is_paused_seldom_is_never_cut() -> None:
    congestion = Congestion()
    for second in range(1_000):
        now = START + second
        congestion.resumed(now)
        congestion.pause(A, KEY, DRAIN_SHARE, FEW, now)
        assert congestion.too_long(now) == []


def test_rest_needs_most_links_to_be_full_or_paused() -> None:
    congestion = paused(4, seconds=0.4)
    assert congestion.rest_s(KEY, (A, B), START) == 0
    assert congestion.rest_s(KEY, (A,), START) == pytest.approx(0.4)
    congestion.full(B, START)
    assert congestion.rest_s(KEY, (A, B, C), START) == pytest.approx(0.4)
    assert congestion.rest_s(KEY, (A, B, C, NODES[3]), START) == 0
    congestion.full(C, START)
    assert congestion.rest_s(KEY, (A, B, C), START) == PAUSE_MS / 1000


# --- The way back ---------------------------------------------------------------------------


def test_the_way_back_is_the_one_the_newest_first_copy_came_on() -> None:
    congestion = Congestion()
    congestion.came(KEY, CHAIN, A)
    congestion.came(KEY, CHAIN, B)
    assert congestion.neighbour_to_slow(KEY, CHAIN, START) == B
    assert congestion.neighbour_to_slow(part_key(OTHER), CHAIN, START) is None
    assert congestion.neighbour_to_slow(KEY, chain_key(NODES[9], 2), START) is None


def test_the_way_back_is_known_whether_or_not_it_was_told() -> None:
    congestion = Congestion()
    assert congestion.upstream(KEY, CHAIN) is None
    congestion.came(KEY, CHAIN, A)
    assert congestion.upstream(KEY, CHAIN) == A
    assert congestion.neighbour_to_slow(KEY, CHAIN, 1.0) == A
    assert congestion.upstream(KEY, CHAIN) == A
    congestion.came(KEY, CHAIN, B)
    assert congestion.upstream(KEY, CHAIN) == B
    congestion.left(KEY)
    assert congestion.upstream(KEY, CHAIN) is None


def test_neighbour_to_slow_within_the_interval_is_not_told_again() -> None:
    congestion = Congestion()
    congestion.came(KEY, CHAIN, A)
    assert congestion.neighbour_to_slow(KEY, CHAIN, START) == A
    assert congestion.neighbour_to_slow(KEY, CHAIN, START + TELL_EVERY_S * 0.9) is None
    assert congestion.neighbour_to_slow(KEY, CHAIN, START + TELL_EVERY_S) == A


def test_neighbour_to_slow_that_brings_two_chains_is_told_once() -> None:
    congestion, other = Congestion(), chain_key(NODES[9], 2)
    congestion.came(KEY, CHAIN, A)
    congestion.came(KEY, other, A)
    assert congestion.neighbour_to_slow(KEY, CHAIN, START) == A
    assert congestion.neighbour_to_slow(KEY, other, START) is None


def test_the_chains_remembered_are_bounded() -> None:
    congestion = Congestion()
    chains = [chain_key(A, number) for number in range(2 * MAX_UPSTREAMS)]
    for chain in chains:
        congestion.came(KEY, chain, B)
    assert congestion.sizes()["upstreams"] == (MAX_UPSTREAMS, MAX_UPSTREAMS)
    assert congestion.neighbour_to_slow(KEY, chains[0], START) is None
    assert congestion.neighbour_to_slow(KEY, chains[-1], START) == B


def test_neighbours_told_are_bounded_and_the_oldest_forgotten() -> None:
    congestion = Congestion()
    peers = [NodeId(number.to_bytes(20)) for number in range(MAX_TOLD + 1)]
    for peer in peers:
        congestion.came(KEY, CHAIN, peer)
        assert congestion.neighbour_to_slow(KEY, CHAIN, START) == peer
    assert congestion.sizes()["neighbours told"] == (MAX_TOLD, MAX_TOLD)
    congestion.came(KEY, CHAIN, peers[0])
    assert congestion.neighbour_to_slow(KEY, CHAIN, START) == peers[0]
    congestion.came(KEY, CHAIN, peers[-1])
    assert congestion.neighbour_to_slow(KEY, CHAIN, START) is None


def test_a_part_that_is_left_leaves_nothing_behind() -> None:
    congestion = Congestion()
    other = part_key(OTHER)
    for part in (KEY, other):
        congestion.came(part, CHAIN, A)
        congestion.neighbour_to_slow(part, CHAIN, START)
        congestion.came(part, CHAIN, A)
    congestion.left(KEY)
    assert sizes(congestion) == EMPTY | {"upstreams": 1, "neighbours told": 1}
    congestion.left(other)
    assert sizes(congestion) == EMPTY
