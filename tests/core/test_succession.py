"""Who writes: the first, the next when it is gone, and everybody's changes get there."""

from typing import Any

import pytest

from anabranch.core import succession
from anabranch.core.changes import (
    Change,
    CreateStream,
    SetPermission,
    SetTrackers,
    encode_change,
    pack_page,
)
from anabranch.core.ids import NodeId
from anabranch.core.machine import Disconnect
from anabranch.core.messages import ChainChanged, ChainPage, ReadChain, WriteChange, Written
from anabranch.core.messages.registry import NETWORK
from anabranch.core.succession import (
    ALONE_S,
    ANSWER_S,
    COMPARING_S,
    DOUBT_S,
    TAKEOVER_S,
    UNDER_WAY_S,
)
from chains import (
    COPIER,
    ENTRIES,
    NET,
    OWNER,
    SECOND,
    STREAM,
    THIRD,
    WRITER,
    Disk,
    Writer,
    network_rows,
    stream_rows,
)
from machines import NODES, SIGNERS
from tracker_world import World

ANN, BEN = NODES[1:3]
TRACKERS = (WRITER, COPIER, THIRD)


def trackers(count: int = 3) -> World:
    """Make trackers that have one stream, and the owner of all, who has a link to each."""
    world = World()
    rows = [*network_rows(*ENTRIES[:count]), *stream_rows()]
    for tracker in TRACKERS[:count]:
        world.add(tracker, rows)
    world.join(OWNER.node, *TRACKERS[:count])
    return world


def created() -> Writer:
    return Writer().add(CreateStream(public=3))


def ask(world: World, tracker: NodeId, change: bytes, ticket: int = 1) -> list[Any]:
    answers = world.say(OWNER.node, tracker, WriteChange(ticket, change))
    return [answer for answer in answers if type(answer) is Written]


def written(world: World, since: int) -> list[Any]:
    return [m for m in world.told(OWNER.node, since) if type(m) is Written]


def heads(world: World) -> set[bytes]:
    return {node.keeper.digest for node in world.nodes.values()}


def writers(world: World) -> list[NodeId]:
    return [me for me, node in world.nodes.items() if node.succession.writes(world.now)]


# --- Who writes -----------------------------------------------------------------------------


def test_the_first_of_the_list_writes_and_the_others_pass_on_what_they_are_asked() -> None:
    world, writer = trackers(), created()
    assert writers(world) == [WRITER]
    for at, tracker in enumerate(TRACKERS):
        assert ask(world, tracker, writer.next(SetPermission(ANN, 1 + at)), at) == [
            Written(at, 2 + at)
        ]
        writer.add(SetPermission(ANN, 1 + at))
    assert heads(world) == {world.nodes[WRITER].keeper.digest}
    rows = world.disks[WRITER].rows
    assert [change for chain, _, change in rows if chain == STREAM] == writer.changes


def test_a_tracker_that_the_network_does_not_name_passes_on_too() -> None:
    world, writer = trackers(2), created()
    world.add(THIRD, [], ENTRIES[0].contact)
    world.join(OWNER.node, THIRD)
    assert ask(world, THIRD, writer.next(SetPermission(ANN, 1))) == [Written(1, 2)]
    world.isolate(WRITER)
    world.isolate(COPIER)
    world.wait(60)
    assert not world.nodes[THIRD].succession.writes(world.now)


def test_the_founder_writes_until_the_network_names_others() -> None:
    world, network = World(), Writer(NETWORK)
    world.add(COPIER, network.rows())
    world.add(WRITER, [], ENTRIES[1].contact)
    world.join(OWNER.node, WRITER, COPIER)
    assert writers(world) == [COPIER]
    assert ask(world, WRITER, network.next(SetTrackers(ENTRIES[:2]))) == [Written(1, 2)]
    assert writers(world) == [WRITER]
    assert ask(world, COPIER, Writer().next(CreateStream())) == [Written(1, 1)]
    assert len(heads(world)) == 1


def test_the_next_takes_over_when_the_first_is_gone_and_gives_back() -> None:
    world, writer = trackers(), created()
    world.stop(WRITER)
    before = len(world.out)
    change = writer.next(SetPermission(ANN, 1))
    for at, tracker in enumerate((COPIER, THIRD)):  # the second passes it on to the first of them
        assert ask(world, tracker, change, at) == []
    world.wait(TAKEOVER_S - 0.1)
    assert written(world, before) == []
    world.wait(0.1)
    assert sorted(written(world, before), key=lambda w: w.ticket) == [Written(0, 2), Written(1, 2)]
    assert writers(world) == [COPIER]
    writer.take(change)
    rows = world.disks[WRITER].rows
    returned = world.add(WRITER, rows)
    world.wait(6)
    assert writers(world) == [WRITER]
    assert returned.keeper.history(STREAM).head == writer.history.head
    world.join(OWNER.node, WRITER)
    assert ask(world, THIRD, writer.next(SetPermission(ANN, 2))) == [Written(1, 3)]
    assert world.disks[WRITER].rows[-1][2] == world.nodes[THIRD].keeper.history(STREAM).changes[-1]


def test_one_who_lost_only_some_of_those_before_it_does_not_write() -> None:
    world = trackers()
    world.part([WRITER], [COPIER, THIRD])
    world.wait(TAKEOVER_S)
    assert writers(world) == [WRITER, COPIER]
    world.part([WRITER, COPIER], [THIRD])
    world.heal()
    assert writers(world) == [WRITER]


def test_after_a_start_the_first_compares_before_it_writes() -> None:
    world, writer = trackers(2), created()
    world.stop(WRITER)
    world.wait(TAKEOVER_S)
    assert ask(world, COPIER, writer.next(SetPermission(ANN, 1))) == [Written(1, 2)]
    writer.add(SetPermission(ANN, 1))
    world.cut.add(COPIER)
    world.add(WRITER, world.disks[WRITER].rows)
    world.join(OWNER.node, WRITER)
    before = len(world.out)
    assert ask(world, WRITER, writer.next(SetPermission(ANN, 2))) == []
    world.wait(ALONE_S - 0.5)
    assert written(world, before) == []
    world.cut.clear()
    world.dial(COPIER, WRITER)
    world.feed_all()
    assert written(world, before) == [Written(1, 3)]


def test_after_a_start_one_that_reaches_nobody_writes_soon() -> None:
    world, writer = trackers(2), created()
    world.stop(WRITER)
    world.stop(COPIER)
    world.add(WRITER, world.disks[WRITER].rows)
    world.join(OWNER.node, WRITER)
    before = len(world.out)
    assert ask(world, WRITER, writer.next(SetPermission(ANN, 2))) == []
    world.wait(ALONE_S)
    assert written(world, before) == [Written(1, 2)]


def test_after_a_start_one_that_reaches_only_the_silent_writes_later() -> None:
    world = trackers(2)
    world.stop(WRITER)
    world.stop(COPIER)
    node = world.add(WRITER, world.disks[WRITER].rows)
    world.join(COPIER, WRITER)  # by hand: it says nothing
    world.wait(COMPARING_S - 0.1)
    assert not node.succession.writes(world.now)
    world.wait(0.1)
    assert node.succession.writes(world.now)


# --- What is under way ----------------------------------------------------------------------


def test_a_change_that_nobody_can_write_is_answered_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(succession, "MAX_UNDER_WAY", 2)
    world, writer = trackers(), created()
    world.isolate(WRITER)
    world.part([COPIER], [THIRD])
    world.add(NODES[20], [], ENTRIES[0].contact)  # which the network does not name
    own = NODES[20]
    world.join(OWNER.node, own)
    before = len(world.out)
    change = writer.next(SetPermission(ANN, 1))
    assert ask(world, own, change, 1) == ask(world, own, change, 2) == []
    [busy] = ask(world, own, change, 3)
    assert busy.problem.startswith("busy")
    world.wait(UNDER_WAY_S)
    assert [(w.ticket, w.problem[:11]) for w in written(world, before)[1:]] == [
        (1, "unreachable"),
        (2, "unreachable"),
    ]
    assert world.nodes[own].sizes()["changes under way"][0] == 0


def test_a_first_tracker_that_says_nothing_keeps_nothing_out_of_the_registry() -> None:
    world, writer = trackers(), created()
    del world.nodes[WRITER]  # its links stand
    before = len(world.out)
    assert ask(world, THIRD, writer.next(SetPermission(ANN, 1))) == []
    world.wait(ANSWER_S)
    assert written(world, before) == [Written(1, 2)]
    assert len(heads(world)) == 1


def test_one_that_the_network_does_not_name_asks_the_next_when_one_says_nothing() -> None:
    world, writer = trackers(2), created()
    world.add(THIRD, [], ENTRIES[0].contact)
    world.join(OWNER.node, THIRD)
    del world.nodes[WRITER]
    before = len(world.out)
    ask(world, THIRD, writer.next(SetPermission(ANN, 1)))
    world.wait(UNDER_WAY_S)
    [answer] = written(world, before)
    assert answer.problem.startswith("unreachable")  # not in the time that it was given,
    world.wait(2 * ANSWER_S - UNDER_WAY_S)
    assert world.nodes[COPIER].keeper.history(STREAM).height == 2  # but it was taken care of
    assert len(heads(world)) == 1


def test_a_change_whose_way_is_cut_is_sent_another_way() -> None:
    world, writer = trackers(), created()
    del world.nodes[WRITER]
    before = len(world.out)
    assert ask(world, THIRD, writer.next(SetPermission(ANN, 1))) == []
    world.isolate(WRITER)
    world.wait(TAKEOVER_S)
    assert written(world, before) == [Written(1, 2)]
    assert writers(world) == [COPIER]


def test_trackers_that_do_not_agree_on_the_list_send_a_change_in_no_circle() -> None:
    world = World()
    for tracker in (WRITER, COPIER):  # each takes the other for the first, and learns no better
        world.disks[tracker] = Disk()
        world.disks[tracker].problem = "broken"
    world.add(WRITER, network_rows(*reversed(ENTRIES[:2])))
    world.add(COPIER, network_rows(*ENTRIES[:2]))
    assert writers(world) == []
    world.join(OWNER.node, WRITER)
    assert ask(world, WRITER, Writer().next(CreateStream())) == []
    under_way = [world.nodes[t].sizes()["changes under way"][0] for t in (WRITER, COPIER)]
    assert under_way == [2, 1]  # the owner wants it, and the other tracker does for his sake
    world.wait(UNDER_WAY_S)
    assert len(written(world, 0)) == 1


def test_answers_that_come_too_late_or_from_elsewhere_are_ignored() -> None:
    world, writer = trackers(), created()
    del world.nodes[WRITER]
    ask(world, COPIER, writer.next(SetPermission(ANN, 1)))
    world.join(ANN, COPIER)
    for sender in (ANN, THIRD):
        before = len(world.out)
        world.say(sender, COPIER, Written(1, 9))
        assert written(world, before) == []
    before = len(world.out)
    world.say(WRITER, COPIER, Written(1, 9))
    assert written(world, before) == [Written(1, 9)]
    world.say(WRITER, COPIER, Written(1, 9))
    assert written(world, before) == [Written(1, 9)]


def test_what_an_author_did_not_sign_costs_him_the_link_and_not_who_would_pass_it_on() -> None:
    world, writer = trackers(), created()
    change = writer.next(SetPermission(ANN, 1))
    world.join(BEN, THIRD)
    world.say(BEN, THIRD, WriteChange(1, change[:-1] + bytes([change[-1] ^ 1])))
    assert (THIRD, Disconnect(BEN, "change-forged")) in world.out
    assert frozenset((THIRD, WRITER)) in world.wires


def test_what_the_writer_refuses_is_refused_to_the_author() -> None:
    world, writer = trackers(), created()
    eve, history = SIGNERS[9], writer.history
    given = (SetPermission(eve.node, 31),)
    change = Change(STREAM, history.tips, 2, eve.node, history.at_ms, given)
    [refused] = ask(world, THIRD, encode_change(change, NET, eve.sign))
    assert refused.problem.startswith("forbidden")
    [stale] = ask(world, COPIER, Writer().next(CreateStream(degree=9)))
    assert stale.problem.startswith("stale")
    world.say(OWNER.node, COPIER, ReadChain(1, SECOND))
    assert type(world.out[-1][1].message) is ChainPage


# --- A first tracker that cannot be trusted -------------------------------------------------


class Untrue:
    """Plays the first tracker by hand to the second, which is asked for a change."""

    def __init__(self) -> None:
        self.world, self.writer = trackers(2), created()
        del self.world.nodes[WRITER]
        self.since = len(self.world.out)
        self.change = self.writer.next(SetPermission(ANN, 1))
        assert ask(self.world, COPIER, self.change) == []
        told = self.world.told(WRITER, self.since)
        [self.asked] = [m for m in told if type(m) is WriteChange]

    def answer(self, height: int = 0, problem: str = "") -> list[Any]:
        """Say what became of the change; return what the owner is told of it."""
        self.world.say(WRITER, COPIER, Written(self.asked.ticket, height, problem))
        return written(self.world, self.since)

    @property
    def second(self) -> Any:
        return self.world.nodes[COPIER].keeper.history(STREAM)


def test_what_it_refuses_without_reason_is_written_by_the_next() -> None:
    untrue = Untrue()
    assert untrue.answer(problem="forbidden: because I say so") == []
    untrue.world.wait(DOUBT_S / 2)
    assert untrue.answer(problem="forbidden: and again") == []  # which wins it no time
    untrue.world.wait(DOUBT_S / 2)
    assert written(untrue.world, untrue.since) == [Written(1, 2)]
    assert untrue.second.has(untrue.change)


def test_what_it_refuses_with_reason_is_refused_once_the_reason_is_known() -> None:
    untrue = Untrue()
    assert untrue.answer(problem="stale: read the chain and try again") == []
    history = untrue.writer.add(SetPermission(BEN, 2)).history
    changed = ChainChanged(STREAM, 2, history.head)
    [read] = [m for m in untrue.world.say(WRITER, COPIER, changed) if type(m) is ReadChain]
    rest = pack_page(history.changes, 1)
    untrue.world.say(WRITER, COPIER, ChainPage(read.ticket, STREAM, 1, 2, history.head, rest))
    untrue.world.wait(DOUBT_S)
    [answer] = written(untrue.world, untrue.since)
    assert answer.problem.startswith("stale")
    assert untrue.second.head == history.head


def test_what_it_says_it_has_written_it_cannot_hide() -> None:
    untrue = Untrue()
    assert untrue.answer(height=2) == [Written(1, 2)]
    assert untrue.second.has(untrue.change)
