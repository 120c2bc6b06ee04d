"""Slow links: what waits for them, who hears of it, and when it is enough."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.congestion import (
    CUT_AFTER_S,
    MAX_UPSTREAMS,
    MAX_WAITING_BYTES,
    MAX_WAITING_FRAMES,
    TELL_EVERY_S,
    Congestion,
)
from anabranch.core.ids import FrameHead, NodeId, chain_key, part_key
from anabranch.core.machine import Dropped, Forward
from machines import NODES, OTHER, PART, START

A, B, C = NODES[:3]
KEY = part_key(PART)
CHAIN = chain_key(NODES[9], 1)
EMPTY = {"outbox frames": 0, "outbox bytes": 0, "upstreams": 0, "chains told": 0}


def forward(number: int, *peers: NodeId, frame: bytes = b"frame") -> Forward:
    """Make a Forward of one message; that the frame is no frame does not matter here."""
    head = FrameHead(KEY, CHAIN, number - 1, number, number, 1)
    return Forward(7, head, [(peer, peer[:1]) for peer in peers], frame)


def congested(*peers: NodeId) -> Congestion:
    congestion = Congestion()
    for peer in peers:
        congestion.full(peer, START)
    return congestion


def sizes(congestion: Congestion) -> dict[str, int]:
    return {name: size for name, (size, _) in congestion.sizes().items()}


def test_what_meets_no_full_link_passes_as_it_is() -> None:
    whole = forward(1, A, B)
    leaving, dropped = congested(C).keep_back(whole)
    assert leaving is whole
    assert dropped == []


def test_frames_wait_for_the_full_link_only_and_leave_in_their_order() -> None:
    congestion = congested(B)
    assert congestion.keep_back(forward(1, A, B, C)) == (forward(1, A, C), [])
    assert congestion.keep_back(forward(2, B)) == (None, [])
    assert congestion.keep_back(forward(3, B, C)) == (forward(3, C), [])
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
    assert congestion.too_long(START + CUT_AFTER_S) == [A]
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
        assert congestion.keep_back(forward(number, A)) == (None, [])
    newest = forward(MAX_WAITING_FRAMES + 1, A, B)
    leaving, dropped = congestion.keep_back(newest)
    assert leaving == forward(MAX_WAITING_FRAMES + 1, B)
    assert dropped == [Dropped(forward(1).head, "link-full", A)]
    assert sizes(congestion)["outbox frames"] == MAX_WAITING_FRAMES


def test_an_outbox_is_bounded_in_bytes() -> None:
    congestion, frame = congested(A), bytes(MAX_WAITING_BYTES // 2)
    congestion.keep_back(forward(1, A))
    congestion.keep_back(forward(2, A, frame=frame))
    _, dropped = congestion.keep_back(forward(3, A, frame=frame))
    assert dropped == [Dropped(forward(1).head, "link-full", A)]
    assert sizes(congestion)["outbox bytes"] == MAX_WAITING_BYTES
    _, dropped = congestion.keep_back(forward(4, A))
    assert dropped == [Dropped(forward(2).head, "link-full", A)]
    assert sizes(congestion)["outbox bytes"] == len(frame) + 5


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "keep", "keep", "suppress", "full", "writable", "gone"]),
        st.sampled_from([A, B]),
        st.integers(1, 6),
    )
)


@given(STEPS)
def test_the_bytes_of_an_outbox_are_those_of_its_frames(
    steps: list[tuple[str, NodeId, int]],
) -> None:
    congestion = congested(A, B)
    for word, peer, number in steps:
        if word == "keep":
            congestion.keep_back(forward(number, A, B, frame=bytes(number)))
        elif word == "suppress":
            congestion.suppress(peer, forward(number).head)
        elif word == "full":
            congestion.full(peer, START)
        else:
            congestion.writable(peer) if word == "writable" else congestion.gone(peer, "down")
        for outbox in congestion.outboxes.values():
            assert outbox.bytes == sum(len(w.frame) for w in outbox.frames.values())
        assert (congestion.wakeup_at is None) is (not congestion.outboxes)


# --- The way back ---------------------------------------------------------------------------


def test_the_way_back_is_the_one_the_newest_first_copy_came_on() -> None:
    congestion = Congestion()
    congestion.came(KEY, CHAIN, A)
    congestion.came(KEY, CHAIN, B)
    assert congestion.whom_to_tell(KEY, CHAIN, START) == B
    assert congestion.whom_to_tell(part_key(OTHER), CHAIN, START) is None
    assert congestion.whom_to_tell(KEY, chain_key(NODES[9], 2), START) is None


def test_the_way_back_is_known_whether_or_not_it_was_told() -> None:
    congestion = Congestion()
    assert congestion.upstream(KEY, CHAIN) is None
    congestion.came(KEY, CHAIN, A)
    assert congestion.upstream(KEY, CHAIN) == A
    assert congestion.whom_to_tell(KEY, CHAIN, 1.0) == A
    assert congestion.upstream(KEY, CHAIN) == A
    congestion.came(KEY, CHAIN, B)
    assert congestion.upstream(KEY, CHAIN) == B
    congestion.left(KEY)
    assert congestion.upstream(KEY, CHAIN) is None


def test_nobody_is_told_too_often() -> None:
    congestion = Congestion()
    congestion.came(KEY, CHAIN, A)
    assert congestion.whom_to_tell(KEY, CHAIN, START) == A
    congestion.came(KEY, CHAIN, A)
    assert congestion.whom_to_tell(KEY, CHAIN, START + TELL_EVERY_S * 0.9) is None
    assert congestion.whom_to_tell(KEY, CHAIN, START + TELL_EVERY_S) == A


def test_one_frame_is_worth_one_word() -> None:
    # Else two nodes that take each other for the way back would tell each other for ever.
    congestion = Congestion()
    congestion.came(KEY, CHAIN, A)
    assert congestion.whom_to_tell(KEY, CHAIN, START) == A
    assert congestion.whom_to_tell(KEY, CHAIN, START + 1) is None
    congestion.came(KEY, CHAIN, B)
    assert congestion.whom_to_tell(KEY, CHAIN, START + 1) == B


def test_the_chains_remembered_are_bounded() -> None:
    congestion = Congestion()
    chains = [chain_key(A, number) for number in range(2 * MAX_UPSTREAMS)]
    for chain in chains:
        congestion.came(KEY, chain, B)
    assert congestion.sizes()["upstreams"] == (MAX_UPSTREAMS, MAX_UPSTREAMS)
    assert congestion.whom_to_tell(KEY, chains[0], START) is None
    assert congestion.whom_to_tell(KEY, chains[-1], START) == B
    for chain in chains:
        congestion.came(KEY, chain, B)
        congestion.whom_to_tell(KEY, chain, START + 1)
    assert congestion.sizes()["chains told"] == (MAX_UPSTREAMS, MAX_UPSTREAMS)


def test_the_chains_told_longest_ago_are_forgotten_first() -> None:
    congestion = Congestion()
    chains = [chain_key(A, number) for number in range(MAX_UPSTREAMS + 1)]

    def tell(number: int, now: float) -> NodeId | None:
        congestion.came(KEY, chains[number], B)
        return congestion.whom_to_tell(KEY, chains[number], now)

    for number in range(MAX_UPSTREAMS):
        assert tell(number, START) == B
    assert tell(0, START + 1) == B
    assert tell(MAX_UPSTREAMS, START + 1) == B
    assert tell(0, START + 1) is None
    assert tell(1, START) == B  # forgotten, so that it is told once more
    assert tell(MAX_UPSTREAMS, START + 1) is None


def test_a_part_that_is_left_leaves_nothing_behind() -> None:
    congestion = Congestion()
    other = part_key(OTHER)
    for part in (KEY, other):
        congestion.came(part, CHAIN, A)
        congestion.whom_to_tell(part, CHAIN, START)
        congestion.came(part, CHAIN, A)
    congestion.left(KEY)
    assert sizes(congestion) == EMPTY | {"upstreams": 1, "chains told": 1}
    congestion.left(other)
    assert sizes(congestion) == EMPTY
