"""The leader's order of each chain: what waits, for how long, and which mark it gets."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.core import chain_order
from anabranch.core.chain_order import (
    ASK_AFTER_S,
    MAX_WAITING_PER_PUBLISHER,
    RESCAN_S,
    WAIT_S,
)
from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.machine import Send
from anabranch.core.messages import Acknowledged, AskStored, Fetch, Lead, Resend, Resent, Voted
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import LATE, MAX_NUMBER, FrameName, Selection
from anabranch.core.missing_frames import MAX_NEIGHBOURS
from anabranch.core.store import Keep, Order, Page, Placed
from anabranch.sim.storage_checker import mark_after
from anabranch.sim.stores import MemoryStore
from machines import NODES, PART, Chain, forged, sent
from storage_desk import PUBLISHERS, READER, Desk, name_of

ONE, TWO = NODES[1], NODES[2]


def leading(size: int = 1, store: MemoryStore | None = None, keep_s: float | None = None) -> Desk:
    """A storage node that leads: alone, or elected by one of the others."""
    desk = Desk(size, store=store, keep_s=keep_s)
    if size == 1:
        desk.wait(3.0)
        desk.settle()
    else:
        desk.wait(3.0)
        epoch = desk.status.epoch + 1
        desk.hear(ONE, Voted(PART, epoch, True, False))
        desk.save()
        desk.hear(ONE, Voted(PART, epoch, True, True))
        desk.save()
    assert desk.status.primary == NODES[0]
    return desk


def rows(desk: Desk) -> list[Placed]:
    page = Page(PART, Selection(), MAX_NUMBER, 1 << 40)
    return list(desk.store.find(page).placed)


def marks(desk: Desk) -> list[int]:
    return [row.entry.mark for row in rows(desk)]


def test_frames_that_follow_one_another_are_placed_at_once_without_a_mark() -> None:
    desk, chain = leading(), Chain(PUBLISHERS[0])
    frames = [chain.frame(at=desk.now) for _ in range(3)]
    desk.take(*frames)
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [0, 0, 0])


def test_frame_behind_a_gap_waits_while_other_chains_go_on_and_follows_what_comes() -> None:
    desk, chain, other = leading(), Chain(PUBLISHERS[0]), Chain(PUBLISHERS[0], number=2)
    first, second, third = (chain.frame(at=desk.now) for _ in range(3))
    others = [other.frame(at=desk.now) for _ in range(2)]
    desk.take(first, third, *others)
    desk.settle()
    assert desk.log == [first, *others], "only the chain with the gap waits"
    desk.wait(WAIT_S - 0.01)
    desk.settle()
    assert desk.log == [first, *others]
    desk.take(second)
    desk.settle()
    assert (desk.log, marks(desk)) == ([first, *others, second, third], [0] * 5)
    assert desk.state.held == 0


def test_gap_that_is_not_closed_is_recorded_without_an_offset() -> None:
    desk, chain = leading(), Chain(PUBLISHERS[0])
    first, second, third, fourth = (chain.frame(b"a", b"b", at=desk.now) for _ in range(4))
    desk.take(first, third, fourth)
    desk.settle()
    desk.wait(WAIT_S)
    desk.settle()
    assert desk.log == [first, third, fourth]
    assert [row.offset for row in rows(desk)] == [0, 2, 4], "offsets stay dense"
    assert marks(desk) == [0, peek(first).last + 1, 0]
    desk.take(second)
    desk.settle()
    assert (desk.log[-1], marks(desk)[-1]) == (second, LATE)


def test_second_frame_with_the_same_previous_is_late() -> None:
    desk, chain, twin = leading(), Chain(PUBLISHERS[0]), Chain(PUBLISHERS[0])
    first = chain.frame(at=desk.now)
    twin.newest = chain.newest
    one, other = chain.frame(at=desk.now), twin.frame(b"x", b"y", at=desk.now + 1)
    desk.take(first, one, other, twin.frame(at=desk.now + 1))
    desk.settle()
    assert marks(desk) == [0, 0, LATE, 0]


def test_frame_that_comes_again_has_one_place_and_no_new_mark() -> None:
    desk, chain = leading(), Chain(PUBLISHERS[0])
    frames = [chain.frame(at=desk.now) for _ in range(3)]
    desk.take(*frames, frames[1], frames[2], frames[0])
    desk.settle()
    desk.take(*frames)
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [0, 0, 0])


def test_newest_number_of_a_chain_is_known_after_a_restart() -> None:
    old, chain = leading(), Chain(PUBLISHERS[0])
    first, second, third, fourth = (chain.frame(at=old.now) for _ in range(4))
    old.take(first, second)
    old.settle()
    desk = leading(store=old.store)
    desk.take(fourth)
    desk.settle()
    assert desk.log == [first, second]
    desk.take(third)
    desk.settle()
    assert (desk.log, marks(desk)) == ([first, second, third, fourth], [0, 0, 0, 0])


def test_new_leader_places_held_frames_of_each_chain_in_order() -> None:
    store, chains = (
        MemoryStore(),
        [Chain(signer, number=n) for signer in PUBLISHERS for n in (1, 2)],
    )
    now = Desk(1).now
    # Numbers are such that the order by number alone is not that of every chain.
    frames = [chain.frame(at=now + at) for at in (3, 1, 2) for chain in chains]
    store.write([Keep(PART, tuple(reversed(frames)), int(now * 1000))])
    desk = leading(store=store)
    assert sorted(desk.log) == sorted(frames)
    assert marks(desk) == [0] * len(frames)
    assert desk.state.held == 0


def test_new_leader_waits_for_what_is_missing_before_frames_it_held_as_a_follower() -> None:
    store, chain = MemoryStore(), Chain(PUBLISHERS[0])
    now = Desk(1).now
    first, second, third = (chain.frame(at=now) for _ in range(3))
    store.write([Keep(PART, (third,), int((now - 60) * 1000))])
    desk = Desk(1, store=store)
    while desk.status.primary is None:
        desk.wait(0.1)
        desk.settle()
    desk.wait(WAIT_S / 2)
    desk.settle()
    assert desk.log == [], "it came long ago, and nobody was asked for what is missing"
    desk.take(first, second)
    desk.settle()
    assert (desk.log, marks(desk)) == ([first, second, third], [0, 0, 0])


def test_held_frame_behind_a_newer_one_is_placed_late_by_a_new_leader() -> None:
    store, chain = MemoryStore(), Chain(PUBLISHERS[0])
    now = Desk(1).now
    first, second, third = (chain.frame(at=now) for _ in range(3))
    gap = peek(first).last + 1
    store.write([Order(PART, 1, 1, (first, third), (0, gap)), Keep(PART, (second,), 1)])
    desk = leading(store=store)
    assert (desk.log, marks(desk)) == ([first, third, second], [0, gap, LATE])


def test_previous_older_than_the_retention_is_not_waited_for() -> None:
    desk, chain = leading(keep_s=60.0), Chain(PUBLISHERS[0])
    chain.frame(at=desk.now - 61)
    old = chain.frame(at=desk.now)
    desk.take(old)
    desk.settle()
    assert (desk.log, marks(desk)) == ([old], [0])
    chain.frame(at=desk.now)
    desk.take(chain.frame(at=desk.now))
    desk.settle()
    assert desk.log == [old], "this one is not so old"


def test_previous_older_than_what_the_log_still_has_is_not_waited_for() -> None:
    store, chain, other = MemoryStore(), Chain(PUBLISHERS[0]), Chain(PUBLISHERS[1])
    now = Desk(1).now
    chain.frame(at=now - 10)
    store.write([Keep(PART, (), 1)])
    log = store._parts[PART]
    log.clear(100, NO_HASH)  # retention has deleted the first hundred messages
    store.write([Order(PART, 1, int((now - 5) * 1000), (other.frame(at=now - 5),))])
    desk = leading(store=store)
    frame = chain.frame(at=desk.now)
    desk.take(frame)
    desk.settle()
    assert (desk.log[-1], marks(desk)) == (frame, [0, 0])


def test_previous_that_may_lie_in_a_damaged_part_of_the_log_is_not_waited_for() -> None:
    old, chain = leading(), Chain(PUBLISHERS[0])
    first, second, third = (chain.frame(at=old.now) for _ in range(3))
    old.take(first, second)
    old.settle()
    old.store.damage(PART, name_of(second))
    desk = leading(store=old.store)
    desk.take(third)
    desk.settle()
    assert (desk.log, marks(desk)) == ([first, third], [0, 0])


def test_write_that_fails_loses_no_frame_and_no_order() -> None:
    desk, chain = leading(), Chain(PUBLISHERS[0])
    frames = [chain.frame(at=desk.now) for _ in range(6)]
    desk.take(frames[0])
    desk.settle()
    desk.take(frames[2], frames[1])
    desk.save("the disk is full")
    desk.take(frames[4], frames[3], frames[5])
    desk.wait(1.0)
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [0] * 6)
    assert desk.machine.sizes()["unsaved bytes"][0] == 0


def test_look_up_that_fails_is_tried_again_and_frames_wait_for_it() -> None:
    old, chain = leading(), Chain(PUBLISHERS[0])
    frames = [chain.frame(at=old.now) for _ in range(3)]
    old.take(frames[0])
    old.settle()
    desk = leading(store=old.store)
    desk.knows_chains = False
    desk.take(frames[1])
    find, name = desk.store.find, name_of(frames[1])
    desk.store.find = lambda query: chain_order.Answer(problem="cannot be read")  # type: ignore[method-assign]
    desk.look()
    desk.store.find = find  # type: ignore[method-assign]
    desk.take(frames[2])
    desk.settle()
    assert desk.log == frames[:1]
    assert not sent(Send, desk.hear(PUBLISHERS[0].node, AskStored(PART, (name,))))
    desk.wait(chain_order.RETRY_S)
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [0, 0, 0])


def test_leader_that_is_deposed_keeps_what_waits_and_hands_it_over() -> None:
    desk, chain = leading(3), Chain(PUBLISHERS[0])
    first, _, third = (chain.frame(at=desk.now) for _ in range(3))
    desk.take(first, third)
    desk.settle()
    desk.hear(ONE, Lead(PART, desk.status.epoch + 1, 0))
    desk.save()
    assert desk.state.held == 1
    handed: list[Any] = []
    for _ in range(30):
        handed += [effect for effect in desk.wait(0.2) + desk.settle() if type(effect) is Send]
    assert third in [frame for send in handed for frame in getattr(send.message, "frames", ())]


# --- Bounds -------------------------------------------------------------------------------------


def test_publisher_that_invents_gaps_delays_only_its_own_chains_and_is_bounded() -> None:
    desk, honest = leading(), Chain(PUBLISHERS[1])
    chains = [Chain(PUBLISHERS[0], number=at) for at in range(10 * MAX_WAITING_PER_PUBLISHER)]
    false: list[bytes] = []
    for chain in chains:
        chain.frame(at=desk.now)  # which nobody ever gets
        false.append(chain.frame(at=desk.now))
        desk.take(false[-1])
        frame = honest.frame(at=desk.now)
        desk.take(frame)
        desk.settle()
        assert frame in desk.log
        for name, (size, bound) in desk.machine.sizes().items():
            assert size <= bound, name
    assert desk.state.held <= MAX_WAITING_PER_PUBLISHER
    desk.wait(WAIT_S)
    desk.settle()
    assert set(false) < set(desk.log)
    assert desk.state.held == 0


def test_chain_with_more_held_frames_than_its_publisher_may_have_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain_order, "MAX_HELD_PER_PUBLISHER", 10)
    desk, chain = leading(), Chain(PUBLISHERS[0])
    chain.frame(at=desk.now)
    frames = [chain.frame(at=desk.now) for _ in range(12)]
    desk.take(*frames)
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [1] + [0] * 11)


def test_held_frames_that_take_several_look_ups_are_placed_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain_order, "LOOK_UP_HELD", 3)
    monkeypatch.setattr(chain_order, "SCAN_NAMES", 2)
    store, chain = MemoryStore(), Chain(PUBLISHERS[0])
    now = Desk(1).now
    frames = [chain.frame(at=now) for _ in range(20)]
    store.write([Keep(PART, tuple(frames[:15]), int(now * 1000))])
    desk = leading(store=store)
    desk.take(*frames[15:])
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [0] * 20)


def test_chains_that_are_forgotten_for_others_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain_order, "MAX_CHAINS", 8)
    desk = leading()
    chains = [Chain(PUBLISHERS[0], number=at) for at in range(20)]
    frames = []
    for _ in range(3):
        for chain in chains:
            frames.append(chain.frame(at=desk.now))
            desk.take(frames[-1])
            desk.settle()
            assert desk.machine.sizes()["chains known"][0] <= 8
    assert (desk.log, marks(desk)) == (frames, [0] * 60)


def test_held_frame_that_nothing_is_known_of_is_found_in_a_while() -> None:
    desk, chain = leading(), Chain(PUBLISHERS[0])
    frame = chain.frame(at=desk.now)
    desk.take(frame)
    desk.settle()
    stray = chain.frame(at=desk.now)
    desk.store.write([Keep(PART, (stray,), 1)])
    desk.take(Chain(PUBLISHERS[1]).frame(at=desk.now))
    for _ in range(10):
        desk.settle()
        desk.wait(RESCAN_S / 5)
    desk.settle()
    assert stray in desk.log


# --- Asking others ------------------------------------------------------------------------------


def waiting(size: int = 3) -> tuple[Desk, list[bytes]]:
    """A leader that lacks the second of three frames, and the questions that it has sent."""
    desk, chain = leading(size), Chain(PUBLISHERS[0])
    frames = [chain.frame(at=desk.now) for _ in range(3)]
    desk.take(frames[0], frames[2])
    desk.settle()
    return desk, frames


def questions(desk: Desk, seconds: float = ASK_AFTER_S) -> list[tuple[Any, Any]]:
    return sent(Resend, desk.wait(seconds))


def test_leader_asks_the_other_storage_nodes_for_what_is_missing() -> None:
    desk, (first, second, third) = waiting()
    assert questions(desk, ASK_AFTER_S - 0.01) == [], "it may be on its way"
    asked = questions(desk, 0.01)
    assert [node for node, _ in asked] == [ONE, TWO]
    wanted = asked[0][1].selection
    head = peek(second)
    assert (wanted.after, wanted.upto, wanted.whose) == (peek(first).last, head.last, head.chain)
    desk.hear(ONE, Resent(asked[0][1].ticket, (second,)))
    desk.settle()
    assert (desk.log, marks(desk)) == ([first, second, third], [0, 0, 0])
    assert questions(desk, 3.0) == []


def test_neighbours_in_the_overlay_are_asked_in_turn() -> None:
    desk, _ = waiting(1)
    neighbours = NODES[10:16]
    overlay = SimpleNamespace(neighbours=lambda part: neighbours)
    parts: Any = SimpleNamespace(find=lambda part: SimpleNamespace(overlay=overlay))
    desk.machine._missing.attach(parts)
    asked = [node for node, _ in questions(desk, WAIT_S)]
    assert len(asked) == len(set(asked)) > MAX_NEIGHBOURS
    assert set(asked) <= set(neighbours)


def test_answer_of_many_pages_is_read_on() -> None:
    desk, chain = leading(3), Chain(PUBLISHERS[0])
    frames = [chain.frame(at=desk.now) for _ in range(4)]
    desk.take(frames[3])
    desk.settle()
    _, question = questions(desk)[0]
    name = name_of(frames[0])
    following = Selection(
        after=0,
        upto=question.selection.upto,
        whose=name.chain,
        by_number=True,
        cursor=name.last.to_bytes(8) + name.chain,
    )
    [(node, again)] = sent(
        Resend, desk.hear(ONE, Resent(question.ticket, (frames[0],), following=following))
    )
    assert (node, again.selection) == (ONE, following)
    desk.hear(ONE, Resent(again.ticket, tuple(frames[1:3])))
    desk.settle()
    assert (desk.log, marks(desk)) == (frames, [0] * 4)


def test_frames_that_were_not_asked_for_or_are_forged_cost_their_sender_its_link() -> None:
    desk, (first, second, third) = waiting()
    _, question = questions(desk)[0]
    ticket = question.ticket
    assert desk.hear(TWO, Resent(ticket, (forged(second),))) == [], "somebody else was asked"
    with pytest.raises(RemoteError, match="forged"):
        desk.hear(ONE, Resent(ticket, (forged(second),)))
    _, question = questions(desk, 0.5)[0]
    with pytest.raises(RemoteError, match="unasked-frame"):
        desk.hear(ONE, Resent(question.ticket, (second, third)))
    desk.settle()
    assert desk.log == [first]


def test_frame_of_a_publisher_that_is_not_permitted_is_not_taken_from_a_neighbour() -> None:
    desk, (first, second, _) = waiting(1)
    overlay = SimpleNamespace(neighbours=lambda part: [NODES[10]])
    parts: Any = SimpleNamespace(find=lambda part: SimpleNamespace(overlay=overlay))
    desk.machine._missing.attach(parts)
    [(node, question)] = questions(desk)
    desk.registry.let(PUBLISHERS[0].node, 0)
    desk.hear(node, Resent(question.ticket, (second,)))
    desk.settle()
    assert desk.log == [first]


# --- Late frames, as others see them ------------------------------------------------------------


def test_late_frame_is_late_in_pages_and_in_acknowledgements() -> None:
    desk, chain = leading(), Chain(PUBLISHERS[0])
    first, second, third = (chain.frame(at=desk.now) for _ in range(3))
    desk.take(first, third)
    desk.settle()
    desk.wait(WAIT_S)
    desk.settle()
    desk.take(second)
    desk.settle()
    desk.hear(READER, Resend(1, PART, Selection()))
    [(_, page)] = sent(Resent, desk.look())
    assert (page.frames, page.late) == ((first, third, second), (2,))
    names = tuple(map(name_of, (first, second)))
    desk.hear(READER, AskStored(PART, names))
    [(_, word)] = sent(Acknowledged, desk.look())
    assert {each.name: each.late for each in word.holdings} == {names[0]: False, names[1]: True}


def test_follower_copies_marks_with_the_entries() -> None:
    desk, (first, second, third) = waiting()
    desk.wait(WAIT_S)
    desk.settle()
    desk.take(second)
    desk.settle()
    pages = (
        desk.hear(ONE, Fetch(PART, desk.status.epoch, 0, NO_HASH, 0, desk.status.epoch))
        + desk.settle()
    )
    entries = [entry for _, page in pages_of(pages) for entry in page.entries]
    assert [entry.mark for entry in entries] == [0, peek(first).last + 1, LATE]
    assert [entry.frame for entry in entries] == [first, third, second]


def pages_of(effects: list[Any]) -> list[tuple[Any, Any]]:
    return [(e.to, e.message) for e in effects if type(e) is Send and hasattr(e.message, "entries")]


# --- Anything that may happen -------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_log_has_every_chain_in_order_whatever_comes_when(seed: int) -> None:
    rng = random.Random(seed)
    store = MemoryStore()
    desk = leading(store=store)
    chains = [Chain(PUBLISHERS[at % 2], number=at) for at in range(5)]
    pending: list[bytes] = []
    lost: set[bytes] = set()
    for _ in range(60):
        chain = rng.choice(chains)
        frame = chain.frame(*[b"x"] * rng.randrange(1, 4), at=desk.now)
        if rng.random() < 0.04:
            lost.add(frame)
        else:
            pending += [frame] * rng.choice((1, 1, 1, 2))
        while len(pending) > rng.randrange(1, 8):
            desk.take(pending.pop(rng.randrange(len(pending))))
        if rng.random() < 0.05:
            desk.save("the disk is full")
        elif rng.random() < 0.6:
            desk.settle()
        desk.wait(rng.choice((0.0, 0.01, 0.1, 0.3)))
        if rng.random() < 0.03:
            for _ in range(2):
                desk.settle()
                desk.wait(1.0)
            now, desk = desk.now, leading(store=store)
            desk.wait(now - desk.now)
    while pending:
        desk.take(pending.pop())
    for _ in range(20):
        desk.settle()
        desk.wait(1.0)
    desk.settle()
    newest: dict[bytes, int] = {}
    for row in rows(desk):
        head = peek(row.entry.frame)
        before = newest.get(head.chain, 0)
        assert row.entry.mark == mark_after(before, head.previous)
        newest[head.chain] = max(before, head.last)
    assert desk.state.held == 0
    assert desk.machine.sizes()["unsaved bytes"][0] == 0
    assert not lost & set(desk.log)
    assert len(set(desk.log)) == len(desk.log) == 60 - len(lost)


def test_names_are_those_of_frames() -> None:
    frame = Chain(PUBLISHERS[0]).frame()
    assert chain_order._unpack(frame) == (peek(frame).chain, 0, peek(frame).last)
    assert name_of(frame) == FrameName(peek(frame).chain, peek(frame).last)
