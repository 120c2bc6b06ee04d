"""Turns: few at once, fewer at one node, not too many a second, and nobody is held up by others."""

from anabranch.core.links import PATIENCE, PATIENCE_PER_S
from anabranch.core.storage_resends import MAX_PAGES_PER_PEER
from anabranch.core.turns import MAX_AT_ONCE, MAX_PER_NODE, MAX_UNDER_WAY, PER_S, Turns
from machines import NODES, START

A, B = NODES[1], NODES[2]


def taken(turns: Turns[str], now: float = START) -> list[str]:
    things = []
    while (thing := turns.take(now)) is not None:
        things.append(thing)
    return things


def test_we_stay_within_what_others_bear() -> None:
    assert MAX_PER_NODE < MAX_PAGES_PER_PEER
    assert MAX_AT_ONCE < PATIENCE
    assert PER_S < PATIENCE_PER_S


def test_too_many_for_one_node_hold_up_nobody_elses() -> None:
    turns: Turns[str] = Turns()
    for i in range(MAX_PER_NODE + 2):
        turns.wait(A, f"a{i}")
    turns.wait(B, "b")
    first = taken(turns)
    assert sorted(first) == sorted(["b", *(f"a{i}" for i in range(MAX_PER_NODE))])
    assert not turns.has_turn
    assert turns.sizes()["resends asked of one node"] == (MAX_PER_NODE, MAX_PER_NODE)
    turns.done(B)
    assert taken(turns) == []
    turns.done(A)
    assert turns.has_turn
    assert taken(turns) == [f"a{MAX_PER_NODE}"]


def test_nodes_take_turns() -> None:
    turns: Turns[str] = Turns()
    for node, name in ((A, "a"), (B, "b")):
        for i in range(3):
            turns.wait(node, f"{name}{i}")
    assert taken(turns) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_only_so_many_are_under_way() -> None:
    turns: Turns[str] = Turns()
    for node in NODES[1:20]:
        for _ in range(MAX_PER_NODE):
            turns.wait(node, node.hex())
    first = taken(turns)
    assert len(first) == MAX_UNDER_WAY
    assert not turns.has_turn
    assert turns.sizes()["resends asked"] == (MAX_UNDER_WAY, MAX_UNDER_WAY)
    turns.done(NODES[1])
    assert len(taken(turns)) == 1


def test_one_node_is_asked_only_so_often() -> None:
    turns: Turns[str] = Turns()
    now, sent = START, 0
    for _ in range(MAX_AT_ONCE * 2):
        turns.wait(A, "a")
    while now < START + 4.0:
        while turns.take(now) is not None:
            turns.sent(A, now)
            turns.done(A)
            sent += 1
            assert sent <= MAX_AT_ONCE + 1 + (now - START) * PER_S
        assert turns.wakeup_at is not None
        assert turns.wakeup_at > now
        now = turns.wakeup_at
    assert sent > MAX_AT_ONCE + 3.9 * PER_S
    turns.wait(B, "b")
    assert taken(turns, now - 1e-6) == ["b"]


def test_what_was_not_sent_is_not_counted() -> None:
    turns: Turns[str] = Turns()
    for _ in range(MAX_AT_ONCE * 2):
        turns.wait(A, "a")
    count = 0
    while turns.take(START) is not None:
        turns.done(A)
        count += 1
    assert count == MAX_AT_ONCE * 2
