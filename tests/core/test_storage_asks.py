"""A storage node's word that it holds a frame."""

import hashlib

import pytest

from anabranch.core import part_log
from anabranch.core.changes import Right
from anabranch.core.machine import Effect, Found
from anabranch.core.messages import (
    Acknowledged,
    AskStored,
    Declined,
    Fetch,
    Fetched,
    LackingNames,
    Lead,
    Voted,
)
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import Entry, FrameName, Holding
from anabranch.core.receipts import signed_bytes
from anabranch.core.storage_asks import ASKED_FOR_S, MAX_ASKED, MAX_ASKED_PER_PEER
from anabranch.core.store import Missing
from machines import KEYS, NODES, PART, SIGNERS, START, Chain, beyond, sent
from storage_desk import NET, PUBLISHERS, READER, STRANGER, Desk, name_of

ONE = NODES[1]
PUBLISHER = PUBLISHERS[0].node


def leading() -> Desk:
    desk = Desk()
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False), Voted(PART, 1, True, True))
    desk.settle()
    desk.hear(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 1))
    return desk


def words(effects: list[Effect]) -> list[tuple[bytes, list[FrameName]]]:
    """Return to whom which frames were acknowledged, in words that are signed."""
    told = []
    for to, word in sent(Acknowledged, effects):
        digest = signed_bytes(NET, word.part, word.holdings)
        assert KEYS.verify(NODES[0], digest, word.signature)
        told.append((to, [holding.name for holding in word.holdings]))
    return told


def test_the_word_is_given_when_the_frame_is_settled_and_not_before() -> None:
    desk = leading()
    frame = Chain(PUBLISHERS[0]).frame(b"a", b"b")
    name = name_of(frame)
    assert desk.hear(PUBLISHER, AskStored(PART, (name,))) == []
    effects = desk.look()
    assert words(effects) == [], "it has not come"
    assert sent(LackingNames, effects) == [(PUBLISHER, LackingNames(PART, (name,)))]
    desk.take(frame)
    assert words(desk.save()) == [], "it is on one disk of three"
    [(to, word)] = sent(Acknowledged, desk.hear(ONE, Fetch(PART, 1, 2, desk.state.hash, 0, 1)))
    assert to == PUBLISHER
    assert word.holdings == (Holding(name, 0, hashlib.sha256(frame).digest()),)
    assert KEYS.verify(NODES[0], signed_bytes(NET, PART, word.holdings), word.signature)
    assert not desk.machine.sizes()["frames asked for"][0]


def test_what_is_settled_already_is_acknowledged_at_once_and_again_when_asked_again() -> None:
    desk = leading()
    frame = Chain(PUBLISHERS[0]).frame()
    desk.take(frame)
    desk.save()
    desk.hear(ONE, Fetch(PART, 1, 1, desk.state.hash, 0, 1))
    for _ in range(2):
        desk.hear(PUBLISHER, AskStored(PART, (name_of(frame),)))
        assert words(desk.look()) == [(PUBLISHER, [name_of(frame)])]


def test_each_who_asked_gets_one_word_for_all_his_frames_of_one_occasion() -> None:
    desk = leading()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame() for _ in range(3)]
    names = tuple(map(name_of, frames))
    desk.hear(PUBLISHER, AskStored(PART, names))
    desk.hear(READER, AskStored(PART, names[:1]))
    desk.look()
    desk.take(*frames)
    desk.settle()
    effects = desk.hear(ONE, Fetch(PART, 1, 3, desk.state.hash, 0, 1))
    assert words(effects) == [(PUBLISHER, list(names)), (READER, [names[0]])]


def test_a_follower_gives_its_word_too_for_what_is_on_its_own_disk() -> None:
    desk = Desk()
    frame = Chain(PUBLISHERS[0]).frame()
    desk.hear(ONE, Lead(PART, 1, 0))
    desk.hear(PUBLISHER, AskStored(PART, (name_of(frame),)))
    desk.settle()
    page = Fetched(PART, 1, 0, 1, 0, NO_HASH, False, (Entry(1, int(START * 1000), frame),))
    assert words(desk.hear(ONE, page)) == []
    assert words(desk.save()) == [(PUBLISHER, [name_of(frame)])]


def test_a_place_that_is_taken_back_is_not_acknowledged_even_if_it_was_looked_up_before() -> None:
    desk = leading()
    ours, theirs = Chain(PUBLISHERS[0]).frame(), Chain(PUBLISHERS[1]).frame()
    desk.take(ours)
    desk.save()
    desk.hear(PUBLISHER, AskStored(PART, (name_of(ours),)))
    stale, desk.finds = desk.finds, []
    found = [desk.store.find(find.query) for find in stale]
    page = Fetched(PART, 2, 0, 1, 0, NO_HASH, False, (Entry(2, int(START * 1000), theirs),))
    desk.hear(ONE, page)
    desk.settle()
    assert (desk.log, desk.status.high) == ([theirs], 1)
    for find, answer in zip(stale, found, strict=True):
        assert words(desk.machine.tell(Found(find.token, answer), desk.now)) == []


def test_only_who_published_it_and_who_may_read_is_told() -> None:
    desk = leading()
    frame = Chain(PUBLISHERS[0]).frame()
    desk.take(frame)
    desk.save()
    desk.hear(ONE, Fetch(PART, 1, 1, desk.state.hash, 0, 1))
    asked = AskStored(PART, (name_of(frame),))
    for node, told in ((STRANGER, 0), (PUBLISHERS[1].node, 0), (READER, 1), (PUBLISHER, 1)):
        assert len(words(desk.hear(node, asked) + desk.look())) == told
    desk.users[STRANGER] = PUBLISHER
    assert len(words(desk.hear(STRANGER, asked) + desk.look())) == 1


def test_who_could_never_publish_asks_for_nothing_of_his_own() -> None:
    desk = leading()
    names = tuple(FrameName(Chain(SIGNERS[33]).key, n + 1) for n in range(100))
    desk.hear(STRANGER, AskStored(PART, names))
    assert (desk.finds, desk.machine.sizes()["frames asked for"][0]) == ([], 0)
    desk.registry.let(STRANGER, Right.PUBLISH)
    desk.hear(STRANGER, AskStored(PART, names))
    assert desk.machine.sizes()["frames asked for"][0] == 100


def test_when_there_is_no_room_who_asks_for_most_makes_some() -> None:
    desk = leading()
    crowd = [SIGNERS[place] for place in (33, 34)]
    for signer in crowd:
        desk.registry.let(signer.node, Right.PUBLISH)
        for start in range(0, MAX_ASKED_PER_PEER, 1_024):
            names = tuple(FrameName(Chain(signer).key, start + n + 1) for n in range(1_024))
            desk.hear(signer.node, AskStored(PART, names))
            desk.look()
    assert desk.machine.sizes()["frames asked for"] == (MAX_ASKED, MAX_ASKED)
    frames = [Chain(PUBLISHERS[0], number=n).frame() for n in range(3)]
    desk.hear(PUBLISHER, AskStored(PART, tuple(map(name_of, frames))))
    desk.take(*frames)
    desk.settle()
    effects = desk.hear(ONE, Fetch(PART, 1, 3, desk.state.hash, 0, 1))
    assert words(effects) == [(PUBLISHER, list(map(name_of, frames)))]
    assert not beyond(desk.machine)


def test_questions_are_bounded_and_forgotten_after_a_while() -> None:
    desk = leading()
    chain = Chain(PUBLISHERS[0])
    for start in range(0, 6_000, 1_000):
        names = tuple(FrameName(chain.key, start + n + 1) for n in range(1_000))
        desk.hear(PUBLISHER, AskStored(PART, names))
        desk.look()
    sizes = desk.machine.sizes()
    assert sizes["frames asked for by a peer"] == (MAX_ASKED_PER_PEER, MAX_ASKED_PER_PEER)
    assert not beyond(desk.machine)
    desk.wait(ASKED_FOR_S + 1)
    assert desk.machine.sizes()["frames asked for"][0] == 0


# --- Frames that are not here ---------------------------------------------------------------


def test_frames_on_the_disk_or_on_the_way_to_it_are_not_named_as_lacking() -> None:
    desk = leading()
    placed, coming, lacked = (Chain(PUBLISHERS[0]).frame(at=START - age) for age in (3, 2, 1))
    desk.take(placed)
    desk.save()
    desk.take(coming)
    names = tuple(map(name_of, (placed, coming, lacked)))
    desk.hear(PUBLISHER, AskStored(PART, names))
    assert sent(LackingNames, desk.look()) == [(PUBLISHER, LackingNames(PART, names[2:]))]


def test_a_frame_that_may_lie_in_a_hole_is_not_named_as_lacking() -> None:
    for storage_nodes, may_lie in ((3, True), (1, False)):
        desk = Desk(storage_nodes)
        desk.machine._logs[PART].lacks((Missing(0, 4, 0, int(START * 1000) - 5_000),))
        old, new = (name_of(Chain(PUBLISHERS[0]).frame(at=START - age)) for age in (6, 4))
        desk.hear(PUBLISHER, AskStored(PART, (old, new)))
        lacking = (new,) if may_lie else (old, new)
        assert sent(LackingNames, desk.look()) == [(PUBLISHER, LackingNames(PART, lacking))]


def test_no_frame_is_named_as_lacking_while_the_disk_fails() -> None:
    desk = leading()
    frame, lacked = Chain(PUBLISHERS[0]).frame(), Chain(PUBLISHERS[1]).frame()
    desk.take(frame)
    desk.save(problem="the disk is full")
    desk.hear(PUBLISHERS[1].node, AskStored(PART, (name_of(lacked),)))
    assert sent(LackingNames, desk.look()) == []


def test_no_frame_is_named_as_lacking_while_the_disk_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_log, "MAX_COMING", 1)
    desk = leading()
    lacked = name_of(Chain(PUBLISHERS[1]).frame())
    for count in (2, 3):  # the first is in the write that is under way, the others wait
        desk.take(*(Chain(PUBLISHERS[0]).frame(at=START - age) for age in range(count)))
        desk.hear(PUBLISHERS[1].node, AskStored(PART, (lacked,)))
        assert bool(sent(LackingNames, desk.look())) is (count == 2)
        desk.save()


def test_a_reader_that_asks_is_not_asked_to_hand_frames_over() -> None:
    desk = leading()
    desk.hear(READER, AskStored(PART, (name_of(Chain(PUBLISHERS[0]).frame()),)))
    assert sent(LackingNames, desk.look()) == []


def test_frames_of_a_publisher_without_a_right_and_frames_past_retention_are_declined() -> None:
    desk = Desk(keep_s=60.0)
    old = name_of(Chain(PUBLISHERS[0]).frame(at=START - 70))
    new = name_of(Chain(PUBLISHERS[0]).frame(at=START - 50))
    effects = desk.hear(PUBLISHER, AskStored(PART, (old, new)))
    assert sent(Declined, effects) == [(PUBLISHER, Declined(PART, (old,)))]
    assert sent(LackingNames, desk.look()) == [(PUBLISHER, LackingNames(PART, (new,)))]
    desk.registry.let(PUBLISHER, 0)
    effects = desk.hear(PUBLISHER, AskStored(PART, (new,)))
    assert sent(Declined, effects) == [(PUBLISHER, Declined(PART, (new,)))]
    assert desk.registry.doubts, "the permission may be newer than what is known here"
    assert sent(LackingNames, desk.look()) == []
