"""What a storage node does about a damaged disk."""

import msgspec
import pytest

from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.machine import Damaged, Effect, Found, Notice
from anabranch.core.messages import AskEntries, Entries, Fetch, Resend, Resent, Vote, Voted
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, Entry, Selection, Span
from anabranch.core.storage_repair import ANSWER_S, REST_S
from anabranch.core.store import (
    Adopt,
    Answer,
    Copy,
    Fill,
    HashAt,
    HolesIn,
    Page,
    Promise,
    Settle,
    hash_after,
)
from machines import NODES, PART, Chain, forged, of, sent
from storage_desk import PUBLISHERS, READER, Desk, name_of
from storage_logs import Log
from storage_logs import entries as entries_of
from storage_world import Keeper, StorageWorld

ONE, TWO = NODES[1], NODES[2]


def damaged(count: int = 3, lost: tuple[int, ...] = (1,)) -> tuple[Desk, list[bytes], list[Entry]]:
    """A primary with settled frames, some of which are damaged on its disk."""
    desk = Desk()
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False), Voted(PART, 1, True, True))
    desk.settle()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame() for _ in range(count)]
    desk.take(*frames)
    desk.settle()
    desk.hear(ONE, Fetch(PART, 1, count, desk.state.hash, 0, 1))
    rows = desk.store.find(Page(PART, Selection(), MAX_NUMBER, 1 << 40)).placed
    for at in lost:
        desk.store.damage(PART, name_of(frames[at]))
    return desk, frames, [row.entry for row in rows]


def hash_before(desk: Desk, entries: list[Entry], offset: int) -> bytes:
    hashed = NO_HASH
    for at, entry in enumerate(entries[:offset]):
        hashed = hash_after(hashed, at, entry)
    return hashed


def answer(desk: Desk, entries: list[Entry], asked: AskEntries, most: int = 99) -> Entries:
    """What a storage node answers whose log is whole."""
    hashed = hash_before(desk, entries, asked.start)
    some = tuple(entries[asked.start : min(asked.end, asked.start + most)])
    return Entries(asked.ticket, PART, asked.start, hashed, some)


def fills(desk: Desk) -> list[Fill]:
    return [write for write in desk.written if type(write) is Fill]


def test_a_damaged_frame_is_named_asked_of_another_and_filled_in_again() -> None:
    desk, frames, entries = damaged()
    desk.hear(READER, Resend(1, PART, Selection()))
    effects = desk.look() + desk.look()
    [(_, shown)] = sent(Resent, effects)
    assert (shown.frames, shown.missing) == ((frames[0], frames[2]), (Span(1, 2),))
    notices = [(notice.kind, notice.detail) for notice in of(Notice, effects)]
    assert notices == [("damaged", "offsets 1-1")]
    [(to, question)] = sent(AskEntries, effects)
    assert (to, question) == (ONE, AskEntries(question.ticket, PART, 1, 2))
    desk.hear(ONE, answer(desk, entries, question))
    assert len(fills(desk)) == 1
    done = desk.settle()
    assert [notice.kind for notice in of(Notice, done)] == ["repaired"]
    assert (desk.log, desk.state.missing) == (frames, ())
    assert desk.machine.sizes()["repairs"][0] == 0


def test_adjacent_frames_are_filled_in_as_they_come_and_shown_when_all_are_proved() -> None:
    desk, frames, entries = damaged(6, (1, 2, 3))
    [(to, question)] = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    assert (question.start, question.end) == (1, 4)
    desk.hear(to, answer(desk, entries, question, most=2))
    effects = desk.settle()
    assert desk.log == [frames[0], *frames[4:]], "what is filled in is not proved yet"
    [(to, question)] = sent(AskEntries, effects)
    assert (question.start, question.end) == (3, 4)
    desk.hear(to, answer(desk, entries, question))
    desk.settle()
    assert desk.log == frames


def test_it_is_found_in_quiet_times_before_anybody_asks() -> None:
    desk, _, _ = damaged()
    assert len(sent(AskEntries, desk.wait(2.0) + desk.look() + desk.look())) == 1


def test_who_does_not_answer_or_does_not_have_it_is_not_waited_for() -> None:
    desk, frames, entries = damaged()
    first = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    second = sent(AskEntries, desk.wait(ANSWER_S))
    assert [to for to, _ in first + second] == [ONE, TWO]
    desk.hear(TWO, Entries(second[0][1].ticket, PART, 1))
    assert sent(AskEntries, desk.wait(REST_S - 1.0)) == [], "all were asked in vain"
    assert desk.hear(ONE, answer(desk, entries, first[0][1])) == [], "too late"
    assert not fills(desk)
    [(to, question)] = sent(AskEntries, desk.wait(1.0))
    desk.hear(to, answer(desk, entries, question))
    desk.settle()
    assert desk.log == frames


def test_entries_that_do_not_lead_to_the_log_are_dropped_and_another_node_is_asked() -> None:
    desk, frames, entries = damaged()
    [(to, question)] = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    wrong = [msgspec.structs.replace(entry, placed_ms=entry.placed_ms + 1) for entry in entries]
    desk.hear(to, answer(desk, wrong, question))
    effects = desk.settle()
    assert desk.log == [frames[0], frames[2]]
    again = sent(AskEntries, effects + desk.wait(ANSWER_S))
    assert [node for node, _ in again] == [TWO]
    desk.hear(TWO, answer(desk, entries, again[0][1]))
    desk.settle()
    assert desk.log == frames


def test_a_forgery_costs_the_link() -> None:
    desk, frames, entries = damaged()
    [(to, question)] = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    lie = msgspec.structs.replace(entries[1], frame=forged(frames[1]))
    with pytest.raises(RemoteError):
        desk.hear(to, Entries(question.ticket, PART, 1, NO_HASH, (lie,)))
    assert not fills(desk)


def test_a_primary_with_a_hole_lets_another_lead_and_does_not_place_what_may_be_in_it() -> None:
    desk, frames, entries = damaged()
    [(to, question)] = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    assert desk.status.primary is None
    desk.take(frames[1])  # its publisher brings it once again
    desk.settle()
    assert desk.state.length == 3
    assert sent(Vote, desk.wait(ANSWER_S - 0.5)) == [], "nor does it stand"
    desk.hear(to, answer(desk, entries, question))
    desk.settle()
    assert (desk.log, desk.state.held) == (frames, 0)
    assert sent(Vote, desk.wait(5.0))


def test_a_primary_leads_again_when_all_others_lack_it_too() -> None:
    desk, _, _ = damaged()
    asked = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    assert desk.status.primary is None
    asked += sent(AskEntries, desk.wait(ANSWER_S))
    desk.hear(TWO, Entries(asked[1][1].ticket, PART, 1))
    desk.settle()
    assert sent(Vote, desk.wait(REST_S - 1.0)) == [], "the first may have it, and is only late"
    desk.settle()
    [(to, question)] = sent(AskEntries, desk.wait(2.0))
    assert to == ONE
    desk.hear(ONE, Entries(question.ticket, PART, 1))
    desk.settle()
    assert sent(Vote, desk.wait(6.0))


def test_a_node_that_is_alone_goes_on_and_keeps_saying_what_is_damaged() -> None:
    desk = Desk(size=1)
    desk.wait(5.0)
    desk.settle()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame() for _ in range(3)]
    desk.take(*frames)
    desk.settle()
    desk.store.damage(PART, name_of(frames[1]))
    desk.hear(READER, Resend(1, PART, Selection()))
    effects = desk.look() + desk.look()
    assert [page.missing for _, page in sent(Resent, effects)] == [(Span(1, 2),)]
    assert sent(AskEntries, effects) == []
    desk.take(chain.frame())
    desk.settle()
    assert desk.state.length == 4
    assert [hole.span for hole in desk.state.missing] == [Span(1, 2)]


def test_entries_are_sent_to_storage_nodes_alone_and_without_a_hole() -> None:
    desk, _, entries = damaged(6, (3,))
    desk.hear(READER, AskEntries(1, PART, 1, 5))
    desk.hear(TWO, AskEntries(2, PART, 1, 5), AskEntries(3, PART, 3, 5), AskEntries(4, PART, 9, 12))
    effects = desk.look() + desk.look() + desk.look()
    sent_to = {each.ticket: each for to, each in sent(Entries, effects) if to == TWO}
    assert sent_to[2].entries == tuple(entries[1:3])
    assert sent_to[2].hash == desk.store.find(HashAt(PART, 1)).hash
    assert sent_to[3].entries == sent_to[4].entries == ()
    assert all(each.entries == () for to, each in sent(Entries, effects) if to == READER)


def test_a_world_of_three_mends_its_disks_by_itself() -> None:
    world = StorageWorld(3)
    world.start(0, 1, 2)
    world.run(4)
    frames = [world.publish() for _ in range(12)]
    world.run(5)
    for number, frame in enumerate(frames):
        world.keepers[number % 3].store.damage(PART, name_of(frame))
    assert len(world.log(0)) == 8
    world.run(90)
    assert all(len(world.log(place)) == 12 for place in range(3))
    world.check_end()


def test_log_whose_holes_cannot_be_read_is_not_called_repaired() -> None:
    desk, _, _ = damaged()
    desk.tell(Damaged(PART))
    [find] = desk.finds
    desk.finds = []
    effects = desk.tell(Found(find.token, Answer(problem="the disk cannot be read")))
    effects += desk.wait(ANSWER_S - 0.1)
    assert of(Notice, effects) == []
    found = desk.wait(0.2) + desk.look()
    assert [notice.kind for notice in of(Notice, found)] == ["damaged"]
    assert sent(AskEntries, found) != []
    desk.tell(Damaged(PART))  # again, while the hole is known
    [find] = desk.finds
    desk.finds = []
    assert of(Notice, desk.tell(Found(find.token, Answer(problem="the disk cannot be read")))) == []
    assert desk.machine.sizes()["repairs"][0] == 1


def test_node_with_a_hole_does_not_lead_while_one_that_is_away_may_have_it() -> None:
    desk, _, _ = damaged()
    asked = sent(AskEntries, desk.tell(Damaged(PART)) + desk.look())
    desk.link(ONE, up=False)
    asked += sent(AskEntries, desk.wait(ANSWER_S))
    [_, (to, question)] = asked
    assert to == TWO
    desk.hear(TWO, Entries(question.ticket, PART, 1))
    for _ in range(30):
        desk.settle()
        assert sent(Vote, desk.wait(1.0)) == []
    assert desk.status.primary is None


def test_node_leads_only_when_all_others_lack_every_hole() -> None:
    desk, _, _ = damaged(5, lost=(1, 3))
    effects = desk.tell(Damaged(PART)) + desk.look()
    for _ in range(2):
        [(to, question)] = sent(AskEntries, effects)
        assert question.start == 1
        effects = desk.hear(to, Entries(question.ticket, PART, 1, length=5)) + desk.settle()
    [(to, question)] = sent(AskEntries, effects)
    assert question.start == 3, "the next hole is asked for at once"
    assert sent(Vote, desk.wait(ANSWER_S - 0.1)) == []


def test_storage_node_that_cannot_read_does_not_say_that_it_lacks_entries() -> None:
    desk, _, _ = damaged(3, lost=())
    desk.hear(ONE, AskEntries(7, PART, 1, 2))
    for problem in ("", "the disk cannot be read"):
        [find] = desk.finds
        desk.finds = []
        answer = Answer(problem=problem) if problem else desk.store.find(find.query)
        assert desk.tell(Found(find.token, answer)) == []


def test_new_primary_takes_back_unsettled_damage_that_was_on_no_other_disk() -> None:
    before, frames, _ = damaged(2, lost=())
    chain = Chain(PUBLISHERS[1])
    unsettled = [chain.frame() for _ in range(3)]
    before.take(*unsettled)
    before.settle()
    before.wait(1.5)
    before.settle()
    assert (before.state.high, before.state.length) == (2, 5)
    before.store.damage(PART, name_of(unsettled[1]))
    desk = Desk(store=before.store)
    effects = desk.wait(0.1) + desk.settle()
    for _ in range(2):
        [(to, question)] = sent(AskEntries, effects) or sent(AskEntries, desk.wait(ANSWER_S))
        effects = desk.hear(to, Entries(question.ticket, PART, question.start, length=3))
        effects += desk.settle()
    elect(desk)
    for _ in range(5):  # the last one waits for the one before it
        desk.wait(1.0)
        desk.settle()
    assert desk.state.missing == ()
    for _ in range(5):  # its chain waits for the frame that is damaged, and goes on without it
        desk.wait(1.0)
        desk.settle()
    assert desk.log == [*frames, unsettled[0], unsettled[2]]


def test_new_primary_keeps_damage_that_may_be_settled() -> None:
    desk, _, _ = damaged(3, lost=(2,))
    effects = desk.tell(Damaged(PART)) + desk.look()
    for _ in range(2):
        [(to, question)] = sent(AskEntries, effects)
        effects = desk.hear(to, Entries(question.ticket, PART, 2, length=3)) + desk.settle()
    elect(desk)
    assert [hole.start for hole in desk.state.missing] == [2]


def test_node_does_not_lead_while_the_logs_of_the_others_end_within_its_hole() -> None:
    before, _, entries = damaged(2, lost=())
    before.take(*[Chain(PUBLISHERS[1]).frame() for _ in range(1)])
    before.settle()
    before.wait(1.5)
    before.settle()
    assert (before.state.high, before.state.length) == (2, 3)
    for name in [name for _, name in before.store.names(PART)][1:]:
        before.store.damage(PART, name)
    desk = Desk(store=before.store)
    effects = desk.wait(0.1) + desk.settle()
    asked: list[tuple[NodeId, int]] = []
    for _ in range(40):
        answered: list[Effect] = []
        for to, question in sent(AskEntries, effects):
            asked.append((to, question.start))
            given = answer(desk, entries[:2], question)
            answered += desk.hear(to, msgspec.structs.replace(given, length=2)) + desk.settle()
        assert not sent(Vote, [*effects, *answered])
        effects = answered + desk.wait(0.5) + desk.settle()
    assert {(ONE, 2), (TWO, 2)} <= set(asked)
    assert [(hole.start, hole.filled, hole.end) for hole in desk.state.missing] == [(1, 2, 3)]


class DamagedWorld(StorageWorld):
    """Storage nodes whose logs begin with a part that is settled."""

    def _check(self, keeper: Keeper) -> None: ...


@pytest.mark.parametrize("seed", range(4))
def test_world_with_a_hole_around_the_high_water_mark_goes_on(seed: int) -> None:
    log, high = Log(entries_of(1, 20)), 5
    world = DamagedWorld(3, seed)
    for place, length, log_epoch in ((0, 20, 2), (1, high, 1), (2, high - 2, 1)):
        some = tuple(log.entries[:length])
        whole = [Copy(PART, 0, some), Settle(PART, high if place == 0 else 0)]
        world.keepers[place].store.write(
            [Promise(PART, 2, NODES[0]), *whole, Adopt(PART, log_epoch)]
        )
    for entry in log.entries[2:8]:
        world.keepers[0].store.damage(PART, name_of(entry.frame))
    world.start(0, 1, 2)
    world.run(60)
    frames = [world.publish(0, 1, 2) for _ in range(3)]
    world.run(60)
    states = [world.state(place) for place in range(3)]
    assert len({(state.length, state.high, state.hash) for state in states}) == 1
    assert all(state.high == state.length and not state.missing for state in states)
    placed = [frame for _, frame in world.log(0)]
    assert placed[:high] == [entry.frame for entry in log.entries[:high]], "what was settled stays"
    assert set(frames) <= set(placed)


def test_primary_whose_write_finds_a_hole_places_nothing_while_the_holes_are_looked_up() -> None:
    desk, frames, _ = damaged(3, lost=(1,))
    desk.tell(Damaged(PART))
    [find] = [each for each in desk.finds if type(each.query) is HolesIn]
    other = Chain(PUBLISHERS[1])
    missing, late = other.frame(), other.frame()
    desk.take(late)
    desk.save()
    assert [(hole.start, hole.end) for hole in desk.state.missing] == [(1, 2)]
    assert find in desk.finds
    assert desk.status.primary is None
    desk.wait(1.0)
    desk.save()
    assert desk.log == [frames[0], frames[2]], "what is missing before it may come yet"
    assert desk.state.held == 1
    assert missing not in desk.log


def elect(desk: Desk) -> None:
    """Let the node be elected by the first of the others."""
    for _ in range(20):
        asked = sent(Vote, desk.wait(1.0))
        desk.settle()
        for to, vote in asked:
            for sure in (False, True) if to == ONE else ():
                desk.hear(ONE, Voted(PART, vote.epoch, True, sure))
                desk.settle()
        if desk.status.primary == NODES[0]:
            break
    assert desk.status.primary == NODES[0]
    desk.settle()
