"""Asking for receipts: whom, how often, for how long, and what is handed over."""

import pytest

from anabranch.core import receipts
from anabranch.core.frames import peek
from anabranch.core.machine import (
    Disconnect,
    Draft,
    Hold,
    Notice,
    Publish,
    Published,
    Receipt,
    Release,
    Send,
)
from anabranch.core.messages import AskStored
from anabranch.core.receipts import (
    AGAIN_S,
    BUSY,
    GATHER_S,
    IDLE_S,
    STORED_S,
    Receipts,
)
from anabranch.core.unstored import NAMES_AT_ONCE
from machines import KEYS, NODES, OTHER, PART, SIGNERS, leftovers, of, peer, plain_settings
from receipt_desk import KEEPERS, ME, NET, Desk, Listed, acknowledged, asked, last, messages, said

# --- Asking ---------------------------------------------------------------------------------


def test_all_storage_nodes_are_dialled_and_asked_together_for_what_comes_together() -> None:
    desk = Desk()
    desk.link(1, 2)
    frames = [desk.publish((ticket, 1)) for ticket in (1, 2)]
    assert of(Hold, desk.effects) == [Hold(NODES[place], f"{place}:1") for place in KEEPERS]
    desk.now += GATHER_S / 2
    frames.append(desk.publish((3, 1)))
    assert of(Send, desk.effects) == []
    effects = desk.wait(GATHER_S / 2)
    assert len(of(Send, effects)) == 2
    assert asked(effects, 1) == asked(effects, 2) == last(*frames)
    assert asked(desk.link(3), 3) == last(*frames)  # as soon as there is a link


def test_nobody_else_is_asked() -> None:
    desk = Desk(1)
    desk.registry.streams[OTHER.stream] = (2,)
    desk.link(2, 3)
    frames = desk.publish((1, 1)), desk.publish((2, 1), part=OTHER)
    effects = desk.wait(GATHER_S) + desk.link(1, 3)
    assert [asked(effects, place) for place in (1, 2, 3)] == [*map(last, frames), []]


def test_a_message_asks_for_no_more_than_so_many() -> None:
    desk = Desk(1)
    desk.link(1)
    for ticket in range(NAMES_AT_ONCE + 1):
        desk.publish((ticket, 1))
    sizes = [len(ask.names) for ask in messages(AskStored, desk.wait(GATHER_S))]
    assert sizes == [NAMES_AT_ONCE, 1]


def test_who_has_not_said_so_is_asked_again_every_second_and_nobody_else() -> None:
    desk = Desk()
    desk.link(*KEEPERS)
    frame, other = desk.publish((7, 3)), desk.publish((8, 1))
    desk.wait(GATHER_S)
    desk.say(1, frame, other)
    desk.say(2, frame, other)
    for _ in range(3):
        effects = desk.wait(AGAIN_S)
        assert [asked(effects, place) for place in KEEPERS] == [[], [], last(frame)]
    desk.say(3, frame)
    assert of(Send, desk.wait(IDLE_S)) == []


def test_storage_nodes_that_a_stream_has_named_meanwhile_are_asked() -> None:
    desk = Desk(1)
    desk.link(1, 4)
    frame = desk.publish((7, 1))
    desk.wait(GATHER_S)
    desk.registry.streams[PART.stream] = (4,)
    effects = desk.done(desk.receipts.learned(PART.stream, desk.now)) + desk.wait(AGAIN_S)
    assert (asked(effects, 4), asked(effects, 1)) == (last(frame), [])
    assert of(Hold, effects) == [Hold(NODES[4], "4:1")]


# --- Giving up ------------------------------------------------------------------------------


def test_what_does_not_come_about_in_time_is_said_with_the_words_there_are() -> None:
    desk = Desk()
    frame = desk.publish((7, 3), (8, 2))
    desk.say(2, frame)
    assert of(Receipt, desk.wait(STORED_S - 0.01)) == []
    one, two = of(Receipt, desk.wait(0.01))
    assert (one.ticket, said(one), two.ticket, said(two)) == (7, [2], 8, [2])
    assert "1 of 3" in one.problem
    assert "1 of 2" in two.problem
    assert of(Receipt, desk.say(1, frame)) == []


def test_copies_that_no_stream_can_have_are_refused_at_once() -> None:
    desk = Desk()
    frame = desk.publish((7, 4), (8, 3))
    assert desk.receipt(7) is not None
    assert "has 3 storage nodes" in desk.receipt(7).problem  # type: ignore[union-attr]
    for place in KEEPERS:
        desk.say(place, frame)
    assert said(desk.receipt(8)) == [1, 2, 3]


def test_a_stream_without_storage_nodes_gives_no_receipts() -> None:
    desk = Desk()
    desk.publish((7, 1), part=OTHER)
    (effect,) = desk.effects
    assert isinstance(effect, Receipt)
    assert "no storage nodes" in effect.problem
    assert desk.receipts.wakeup_at is None


@pytest.mark.parametrize(
    ("bound", "size"),
    [("MAX_WAITING_FRAMES", 2), ("MAX_KEEPERS", 2)],
)
def test_too_much_at_once_is_refused_and_what_waits_goes_on(
    bound: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, bound, size)
    desk = Desk(1, 2)
    desk.registry.streams[OTHER.stream] = (3,)
    first = desk.publish((1, 1), size=1_000)
    desk.publish((2, 1), size=1_000)
    refused = OTHER if bound == "MAX_KEEPERS" else PART
    desk.publish((3, 1), size=1_000, part=refused)
    assert desk.effects[-1] == Receipt(3, (), BUSY)
    desk.say(1, first)
    assert said(desk.receipt(1)) == [1]
    desk.publish((4, 1), size=1_000)  # there is room again
    assert desk.receipt(4) is None


# --- Links ----------------------------------------------------------------------------------


def test_links_are_held_while_something_waits_and_for_a_while_after() -> None:
    desk = Desk(1, 2)
    desk.link(1, 2)
    frame = desk.publish((7, 2))
    desk.wait(3 * AGAIN_S)
    desk.say(1, frame)
    desk.say(2, frame)
    asked_at = max(desk.receipts._held.values())
    assert of(Release, desk.wait(asked_at + IDLE_S - desk.now - 0.01)) == []
    assert of(Release, desk.wait(0.01)) == [Release(NODES[1]), Release(NODES[2])]
    assert desk.receipts.wakeup_at is None
    frame = desk.publish((8, 1))
    assert len(of(Hold, desk.effects)) == 4
    desk.wait(STORED_S + IDLE_S)
    assert len(of(Release, desk.effects)) == 2, "the frame is not stored yet"
    desk.say(1, frame)
    desk.say(2, frame)
    desk.wait(IDLE_S)
    assert len(of(Release, desk.effects)) == 4
    idle = {"links known to receipts": 2, "parts without unstored frames": 1}
    assert leftovers(desk.receipts) == idle


def test_a_link_that_is_still_needed_does_not_keep_another() -> None:
    desk = Desk(1)
    desk.registry.streams[OTHER.stream] = (2,)
    desk.publish((1, 1))
    quick = desk.publish((2, 1), part=OTHER)
    desk.say(2, quick, part=OTHER)
    assert of(Release, desk.wait(IDLE_S)) == [Release(NODES[2])]


# --- In a Peer ------------------------------------------------------------------------------


def test_a_peer_gets_receipts_for_drafts_that_want_them() -> None:
    service = Receipts(NET, KEYS.verify, Listed(*KEEPERS))
    hand = peer({PART: plain_settings(NODES[5])}, signer=ME, receipts=service)
    made = of(Published, hand(Publish(PART, [Draft(b"one", 0, 7, copies=1), Draft(b"two", 0, 8)])))
    hand.link(NODES[1], NODES[5])
    frame = made[0].frame
    assert asked(hand.wait(GATHER_S), 1) == last(frame)
    word = acknowledged(1, frame)
    assert of(Receipt, hand.hear(NODES[1], word)) == [
        Receipt(7, ((NODES[1], word),), "", word.holdings[0].offset, peek(frame).first)
    ]
    assert service.sizes()["frames without receipts"][0] == 0


def test_a_storage_node_that_signs_for_another_loses_its_link() -> None:
    service = Receipts(NET, KEYS.verify, Listed(*KEEPERS))
    hand = peer({PART: plain_settings(NODES[5])}, signer=ME, receipts=service)
    (made,) = of(Published, hand(Publish(PART, [Draft(b"one", 0, 7, copies=1)])))
    hand.link(NODES[2])
    forged = acknowledged(2, made.frame, signer=SIGNERS[3])
    effects = hand.hear(NODES[2], forged)
    assert [effect.kind for effect in of(Notice, effects)] == ["fault"]
    assert [effect.peer for effect in of(Disconnect, effects)] == [NODES[2]]
