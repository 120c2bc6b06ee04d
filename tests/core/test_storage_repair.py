"""What a storage node does about a damaged disk."""

import pytest

from anabranch.core.errors import RemoteError
from anabranch.core.machine import Notice
from anabranch.core.messages import Fetch, Fetched, Resend, Resent, Voted
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.store import Repair
from machines import NODES, PART, Chain, forged, of, sent
from storage_desk import PUBLISHERS, READER, Desk, name_of
from storage_world import StorageWorld

ONE, TWO = NODES[1], NODES[2]


def damaged() -> tuple[Desk, list[bytes]]:
    """A primary with three settled frames, the second of which is damaged on its disk."""
    desk = Desk()
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False), Voted(PART, 1, True, True))
    desk.settle()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame() for _ in range(3)]
    desk.take(*frames)
    desk.settle()
    desk.hear(ONE, Fetch(PART, 1, 3, desk.state.hash, 0))
    desk.store.damage(PART, name_of(frames[1]))
    return desk, frames


def repairs(desk: Desk) -> list[Repair]:
    return [write for write in desk.written if type(write) is Repair]


def test_a_damaged_frame_is_not_shown_but_asked_of_another_and_replaced() -> None:
    desk, frames = damaged()
    desk.hear(READER, Resend(1, PART, Selection()))
    effects = desk.look()
    [(_, shown)] = sent(Resent, effects)
    assert shown.frames == (frames[0], frames[2])
    assert [notice.kind for notice in of(Notice, effects)] == ["damaged"]
    [(to, question)] = sent(Resend, effects)
    name = name_of(frames[1])
    wanted = Selection(after=name.last - 1, upto=name.last, whose=name.chain, by_number=True)
    assert (to, question.selection) == (ONE, wanted)
    desk.hear(ONE, Resent(question.ticket, (frames[1],), (1,)))
    assert Repair(PART, frames[1]) in desk.written
    desk.settle()
    assert desk.log == frames
    assert desk.machine.sizes()["repairs"][0] == 0


def test_it_is_found_in_quiet_times_before_anybody_asks() -> None:
    desk, _ = damaged()
    assert len(sent(Resend, desk.wait(2.0) + desk.look())) == 1


def test_who_does_not_answer_or_does_not_have_it_is_not_waited_for() -> None:
    desk, frames = damaged()
    first = sent(Resend, desk.wait(2.0) + desk.look())
    second = sent(Resend, desk.wait(3.0))
    assert [to for to, _ in first + second] == [ONE, TWO]
    assert desk.hear(TWO, Resent(second[0][1].ticket)) == []
    third = sent(Resend, desk.wait(0.0))
    assert [to for to, _ in third] == [ONE]
    assert desk.hear(ONE, Resent(second[0][1].ticket, (frames[1],), (1,))) == [], "too late"
    assert not repairs(desk)
    assert len(sent(Resend, desk.wait(12.0))) == 3, "each of them three times, and no more"
    assert desk.machine.sizes()["repairs"][0] == 0


def test_a_forgery_costs_the_link_and_another_frame_is_no_repair() -> None:
    desk, frames = damaged()
    [(_, question)] = sent(Resend, desk.wait(2.0) + desk.look())
    desk.hear(ONE, Resent(question.ticket, (frames[0],), (0,)))
    [(_, question)] = sent(Resend, desk.wait(0.0))
    with pytest.raises(RemoteError):
        desk.hear(TWO, Resent(question.ticket, (forged(frames[1]),), (1,)))
    assert not repairs(desk)


def test_a_frame_that_is_not_settled_elsewhere_is_taken_only_when_all_were_asked() -> None:
    desk, frames = damaged()
    [(_, question)] = sent(Resend, desk.wait(2.0) + desk.look())
    desk.save()
    for node in (ONE, TWO):
        desk.hear(node, Resent(question.ticket, (frames[1],), (MAX_NUMBER,)))
        assert not repairs(desk)
        [(_, question)] = sent(Resend, desk.wait(0.0))
    desk.hear(ONE, Resent(question.ticket, (frames[1],), (MAX_NUMBER,)))
    assert Repair(PART, frames[1]) in desk.written


def test_followers_get_what_lies_before_a_damaged_frame_and_the_rest_after_its_repair() -> None:
    desk, frames = damaged()
    desk.hear(TWO, Fetch(PART, 1, 0, NO_HASH, 0))
    effects = desk.look() + desk.look()
    [(_, page)] = [(to, page) for to, page in sent(Fetched, effects) if to == TWO]
    assert [entry.frame for entry in page.entries] == frames[:1]
    [(_, question)] = sent(Resend, effects)
    desk.hear(ONE, Resent(question.ticket, (frames[1],), (1,)))
    desk.settle()
    desk.hear(TWO, Fetch(PART, 1, 0, NO_HASH, 0))
    pages = sent(Fetched, desk.look() + desk.look())
    assert [entry.frame for entry in pages[-1][1].entries] == frames


def test_a_world_of_three_mends_its_disks_by_itself() -> None:
    world = StorageWorld(3)
    world.start(0, 1, 2)
    world.run(4)
    frames = [world.publish() for _ in range(12)]
    world.run(5)
    for number, frame in enumerate(frames):
        world.keepers[number % 3].store.damage(PART, name_of(frame))
    assert len(world.log(0)) == 8
    world.run(20)
    assert all(len(world.log(place)) == 12 for place in range(3))
    world.check_end()
