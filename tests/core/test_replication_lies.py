"""A tracker that lies to another, or contradicts itself, loses its link and harms nothing."""

from typing import Any

import pytest

from anabranch.core import replication
from anabranch.core.changes import Change, CreateStream, SetPermission, encode_change, pack_page
from anabranch.core.history import roll
from anabranch.core.ids import NodeId
from anabranch.core.machine import Disconnect
from anabranch.core.messages import (
    ChainChanged,
    ChainHead,
    ChainPage,
    HeadList,
    ListHeads,
    ReadChain,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.replication import COMPARE_AGAIN_S, MAX_RESTARTS
from chains import COPIER, ENTRIES, NET, SECOND, STREAM, THIRD, WRITER, Writer, network_rows
from machines import NODES, SIGNERS
from tracker_world import World

ANN = NODES[1]


class Liar:
    """Plays the writer by hand to a tracker that has nothing but the network's chain."""

    def __init__(self, *rows: tuple[str, int, bytes]) -> None:
        self.world = World()
        self.copier = self.world.add(COPIER, [*network_rows(*ENTRIES[:2]), *rows])
        self.world.join(WRITER, COPIER)
        [self.listing] = [m for m in self.world.told(WRITER) if type(m) is ListHeads]

    def say(self, message: Any) -> list[Any]:
        return self.world.say(WRITER, COPIER, message)

    def claim(self, writer: Writer) -> ReadChain:
        """Name a chain's head; return what is asked because of it."""
        history = writer.history
        heads = (ChainHead(writer.chain, history.height, history.head),)
        [asked] = self.say(HeadList(self.listing.ticket, heads))
        assert type(asked) is ReadChain
        return asked

    def page(self, asked: ReadChain, changes: list[bytes], writer: Writer, **other: Any) -> Any:
        fields = {"after": asked.after, "height": writer.history.height, **other}
        fields.setdefault("head", writer.history.head)
        return ChainPage(asked.ticket, asked.chain, changes=pack_page(changes, 0), **fields)

    @property
    def reasons(self) -> list[str]:
        """For what it was cut off."""
        return [e.reason for _, e in self.world.out if type(e) is Disconnect and e.peer == WRITER]


def long_chain(actions: int = 2) -> Writer:
    return Writer().add(CreateStream(), *(SetPermission(ANN, 1 + at % 2) for at in range(actions)))


def forge(change: bytes) -> bytes:
    return change[:-1] + bytes([change[-1] ^ 1])


@pytest.mark.parametrize(
    ("changes", "other", "reason"),
    [
        (lambda c: [c[0], forge(c[1])], {}, "change-forged"),
        (lambda c: [c[0], b"junk" * 30], {}, "change-malformed"),
        (lambda c: [Writer(SECOND).next(CreateStream())], {}, "wrong-chain"),
        (lambda c: c[:2], {"height": 1}, "wrong-page"),
        (lambda c: c[:2], {"after": 1}, "wrong-page"),
        (lambda c: c, {"height": 1 << 40}, "wrong-page"),
        (lambda c: [], {}, "wrong-page"),
        (lambda c: c, {"head": bytes(32)}, "contradiction"),
        (lambda c: c[:2], {"height": 2}, "contradiction"),
        (lambda c: c[1:], {}, "orphan"),
    ],
)
def test_a_page_that_does_not_hold(changes: Any, other: dict[str, Any], reason: str) -> None:
    liar, writer = Liar(), long_chain()
    asked = liar.claim(writer)
    said = changes(writer.changes)
    if reason == "orphan":  # which is found out last, so that all else must hold
        other = {"height": 2, "head": _head_of(said)}
    assert liar.say(liar.page(asked, said, writer, **other)) == []
    assert liar.reasons == [reason]
    assert liar.copier.keeper.chains() == [NETWORK]
    assert not liar.copier.replication.has_compared
    assert {liar.copier.sizes()[name][0] for name in ("replicas", "copies in line")} == {0}


def _head_of(changes: list[bytes]) -> bytes:
    head = NET
    for change in changes:
        head = roll(head, change)
    return head


def test_after_a_lie_the_truth_is_taken_from_the_same_tracker() -> None:
    liar, writer = Liar(), long_chain()
    asked = liar.claim(writer)
    liar.say(liar.page(asked, [*writer.changes[:2], forge(writer.changes[2])], writer))
    before = len(liar.world.out)
    liar.world.join(WRITER, COPIER)
    [liar.listing] = [m for m in liar.world.told(WRITER, before) if type(m) is ListHeads]
    asked = liar.claim(writer)
    liar.say(liar.page(asked, writer.changes, writer))
    assert liar.copier.keeper.history(STREAM).head == writer.history.head
    assert liar.copier.replication.has_compared


def test_what_fits_before_a_lie_is_kept_and_no_more_is_read() -> None:
    liar, writer = Liar(), long_chain()
    asked = liar.claim(writer)
    said = [writer.changes[0], writer.changes[2]]
    page = liar.page(asked, said, writer, height=2, head=_head_of(said))
    assert liar.say(page) == []
    assert liar.reasons == ["orphan"]
    assert liar.copier.keeper.history(STREAM).height == 1
    assert not liar.copier.replication.has_compared


def test_what_an_author_had_no_right_to_is_the_fault_of_who_passes_it_on() -> None:
    eve, writer = SIGNERS[9], long_chain(1)
    history = writer.history
    given = (SetPermission(eve.node, 31),)
    change = Change(STREAM, history.tips, 3, eve.node, history.at_ms, given)
    false = encode_change(change, NET, eve.sign)
    head = roll(history.head, false)
    liar = Liar(*writer.rows())
    [asked] = liar.say(ChainChanged(STREAM, 3, head))
    assert (asked.after, asked.head) == (2, history.head)
    liar.say(ChainPage(asked.ticket, STREAM, 2, 3, head, pack_page([false], 0)))
    assert liar.reasons == ["forbidden"]
    assert liar.copier.keeper.history(STREAM).head == history.head


@pytest.mark.parametrize(
    ("names", "more", "reason"),
    [
        ([SECOND, STREAM], False, "wrong-list"),
        ([STREAM, STREAM], False, "wrong-list"),
        (["nonsense"], False, "chain-name"),
        ([], True, "wrong-list"),
    ],
)
def test_a_list_that_does_not_hold(names: list[str], more: bool, reason: str) -> None:
    liar = Liar()
    heads = tuple(ChainHead(name, 1, b"?" * 32) for name in names)
    liar.say(HeadList(liar.listing.ticket, heads, more))
    assert liar.reasons == [reason]


def test_a_list_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "MAX_COPIED_CHAINS", 3)
    liar = Liar()
    asked: Any = liar.listing
    for at in range(4):
        heads = (ChainHead(f"{STREAM}/{at}", 1, b"?" * 32),)
        said = liar.say(HeadList(asked.ticket, heads, True))
        if liar.reasons:
            break
        [asked] = liar.say(ChainPage(said[0].ticket, f"{STREAM}/{at}", 0, 0, NET))
        assert (type(asked), asked.after) == (ListHeads, f"{STREAM}/{at}")
    assert liar.reasons == ["wrong-list"]


def test_answers_that_come_too_late_are_ignored() -> None:
    liar, writer = Liar(), long_chain()
    asked = liar.claim(writer)
    page = liar.page(asked, writer.changes, writer)
    assert liar.say(HeadList(liar.listing.ticket, (), True)) == []
    liar.world.wait(replication.ANSWER_S)
    liar.say(page)
    assert (liar.reasons, liar.copier.keeper.chains()) == ([], [NETWORK])


def test_a_chain_that_changes_its_order_all_the_time_is_left_for_a_while() -> None:
    writer = long_chain(150)
    liar = Liar(*writer.rows()[:1])
    asked = liar.claim(writer)
    assert asked.after == 1
    for turn in range(MAX_RESTARTS + 1):
        first = pack_page(writer.changes[:2], 0)
        page = ChainPage(asked.ticket, STREAM, 0, 151, writer.history.head, first)
        said = [m for m in liar.say(page) if type(m) is ReadChain]
        if turn == MAX_RESTARTS:
            break
        [asked] = said
        assert (asked.after, asked.head) == (2, writer.history.head_at(2))
    assert said == []
    assert liar.reasons == []
    before = len(liar.world.out)
    liar.world.wait(COMPARE_AGAIN_S)
    assert [type(m) for m in liar.world.told(WRITER, before)] == [ListHeads]


def test_a_liar_keeps_nobody_from_reading_elsewhere() -> None:
    """One tracker names chains without end and answers nothing; another tells the truth."""
    world = World()
    rows = network_rows(*ENTRIES)
    honest = [*rows, *long_chain(100).rows()]
    world.add(THIRD, honest)
    world.isolate(THIRD)
    world.add(COPIER, rows)
    world.join(WRITER, COPIER)
    for at in range(2_000):
        world.say(WRITER, COPIER, ChainChanged(f"{STREAM}/{at}", 1, b"?" * 32))
    world.say(WRITER, COPIER, ChainChanged(STREAM, 7, b"?" * 32))
    world.heal()
    assert _same(world, COPIER, THIRD)


def _same(world: World, *nodes: NodeId) -> bool:
    return len({world.nodes[node].keeper.digest for node in nodes}) == 1
