"""Another registry behind the same names: a table that grows by blocks, without hash chains."""

from collections.abc import Sequence

import msgspec
import pytest

from anabranch.core.changes import Action, CreateStream, Right, SetPermission, TrackerEntry
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Signer
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Answered,
    Deliver,
    Effect,
    Event,
    Follow,
    Learned,
    Notice,
    Outcome,
    Publish,
    Request,
    Subscribe,
)
from anabranch.core.messages import ListChains, WriteChange, Written
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import StreamState
from anabranch.core.registry_view import AGAIN, DONE, REFUSED, UNANSWERED, Registry, Verdict, judge
from anabranch.core.rendezvous import settings_of
from chains import OWNER, STREAM
from machines import NODES, SIGNERS, START, Chain, Hand, data, drafts, of, peer

A, PUBLISHER = NODES[1], SIGNERS[9]
PART = StreamPart(STREAM, 0)
TRACKERS = (TrackerEntry(A, "there"),)
BLOCK_S = 12.0


class Call(msgspec.Struct, array_like=True):
    """A call of a contract: who does what to which stream, having seen how many calls to it."""

    stream: str
    sender: bytes
    seen: int
    actions: tuple[Action, ...]


_decode = msgspec.msgpack.Decoder(Call).decode


class Table:
    """All calls in the order of their blocks, and what is waiting for the next one."""

    def __init__(self) -> None:
        self.blocks: list[list[Call]] = []
        self.pending: list[Call] = []

    def mine(self) -> None:
        """Make the next block."""
        self.blocks.append(self.pending)
        self.pending = []


class BlockRegistry(Registry):
    """Reads new blocks when their time has come, or when somebody is in doubt."""

    events = (Follow, Request)

    def __init__(self, table: Table) -> None:
        self._table = table
        self._read = 0  # blocks
        self._read_at = 0.0
        self._streams: dict[str, StreamState] = {}
        self._calls: dict[str, int] = {}
        self._followed: dict[str, None] = {}
        self._asked: list[tuple[int, Call]] = []

    trackers = TRACKERS  # of a network that has just the one

    @property
    def storage(self) -> tuple[TrackerEntry, ...]:
        return ()

    def knows(self, chain: str) -> bool:
        return chain in self._followed

    def version(self, chain: str) -> int:
        return self._calls.get(chain, 0)

    def stream(self, name: str) -> StreamState | None:
        return self._state(name) if name in self._followed else None

    def directory(self, part: StreamPart) -> PartSettings | None:
        return settings_of(part, self.stream(part.stream), self.trackers)

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return stream in self._followed and self._state(stream).may(user, right, now)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        known = self.directory(part) is not None
        return known and self.may(part.stream, publisher, Right.PUBLISH, now)

    def doubt(self, stream: str, now: float) -> list[Effect]:
        return [*self._catch_up(now), Learned(stream, self.version(stream))]

    def confirmed_at(self, stream: str) -> float:
        return self._read_at

    def forget(self, chain: str) -> None:
        self._followed.pop(chain, None)

    def propose(
        self, signer: Signer, chain: str, actions: Action | Sequence[Action], now: float
    ) -> WriteChange:
        done = tuple(actions) if isinstance(actions, Sequence) else (actions,)
        try:
            for action in done:
                self._state(chain).allow(signer.node, int(now * 1000), action)
        except RemoteError as error:
            raise LocalError(str(error)) from error
        call = Call(chain, signer.node, self.version(chain), done)
        return WriteChange(0, msgspec.msgpack.encode(call))

    def includes(self, proposal: WriteChange) -> bool:
        call = _decode(proposal.change)
        return self.version(call.stream) > call.seen

    # --- Events

    def start(self, now: float) -> list[Effect]:
        self.wakeup_at = now + BLOCK_S
        return self._catch_up(now)

    def tell(self, event: Event, now: float) -> list[Effect]:
        if type(event) is Follow:
            self._followed[event.chain] = None
            return [Learned(event.chain, self.version(event.chain))]
        assert type(event) is Request
        if type(event.message) is not WriteChange:
            return [Answered(event.ticket, None, "no-list")]
        call = _decode(event.message.change)
        self._table.pending.append(call)
        self._asked.append((event.ticket, call))
        return []

    def wake(self, now: float) -> list[Effect]:
        self.wakeup_at = now + BLOCK_S
        return self._catch_up(now)

    def _state(self, name: str) -> StreamState:
        return self._streams.setdefault(name, StreamState(name, bytes(32)))

    def _catch_up(self, now: float) -> list[Effect]:
        self._read_at = now
        effects: list[Effect] = []
        for block in self._table.blocks[self._read :]:
            effects += [effect for call in block for effect in self._take(call)]
        self._read = len(self._table.blocks)
        return effects

    def _take(self, call: Call) -> list[Effect]:
        problem = "" if call.seen == self.version(call.stream) else "stale: others were first"
        if not problem:
            self._calls[call.stream] = call.seen + 1
            for action in call.actions:
                self._state(call.stream).act(action)
        written = Written(0, self.version(call.stream), problem)
        mine = [ticket for ticket, asked in self._asked if asked is call]
        self._asked = [(ticket, asked) for ticket, asked in self._asked if asked is not call]
        effects: list[Effect] = [Answered(ticket, written) for ticket in mine]
        return [*effects, Learned(call.stream, self.version(call.stream))]


def node(table: Table) -> tuple[Hand, BlockRegistry]:
    """A Peer that knows of the world what the blocks say."""
    registry = BlockRegistry(table)
    hand = peer(
        {}, signer=OWNER, directory=registry.directory, permits=registry, services=[registry]
    )
    return hand, registry


def change(hand: Hand, registry: BlockRegistry, *actions: Action) -> Verdict:
    """Have a change written, and wait for its block."""
    proposal = registry.propose(OWNER, STREAM, actions, hand.now)
    assert hand(Request(4, proposal)) == []
    assert not registry.includes(proposal)
    registry._table.mine()
    [answer] = of(Answered, hand.wait(BLOCK_S))
    return judge(answer)


def member(table: Table) -> tuple[Hand, BlockRegistry]:
    """A subscriber to a stream that the table has."""
    hand, registry = node(table)
    hand(Follow(STREAM))
    created = CreateStream(overlay="plain")
    assert change(hand, registry, created) == Verdict(DONE)
    assert of(Notice, hand(Subscribe(PART))) == []
    hand.link(A)
    return hand, registry


def test_a_peer_joins_a_stream_that_the_other_registry_knows() -> None:
    hand, registry = node(Table())
    [notice] = of(Notice, hand(Subscribe(PART)))
    assert notice.kind == "no-such-stream"
    hand, registry = member(Table())
    assert registry.version(STREAM) == 1
    assert hand.machine.neighbours(PART) == (A,)  # type: ignore[attr-defined]
    assert of(Outcome, hand(Publish(PART, drafts(1)))) == []  # it waits for the neighbour's word


def test_a_frame_waits_until_the_other_registry_has_spoken() -> None:
    hand, registry = member(Table())
    chain = Chain(PUBLISHER, PART)
    hand.now += 1
    effects = hand(data(A, chain.frame(at=hand.now)))
    assert of(Deliver, effects) == []
    registry._table.pending.append(
        Call(STREAM, OWNER.node, 1, (SetPermission(PUBLISHER.node, Right.PUBLISH),))
    )
    registry._table.mine()
    [delivered] = of(Deliver, hand(data(A, chain.frame(at=hand.now))))[-1:]
    assert delivered.part == PART
    assert registry.may(STREAM, PUBLISHER.node, Right.PUBLISH, hand.now)


def test_a_change_that_came_too_late_is_to_be_proposed_again() -> None:
    hand, registry = member(Table())
    registry._table.pending.append(
        Call(STREAM, OWNER.node, 1, (SetPermission(PUBLISHER.node, Right.PUBLISH),))
    )
    verdict = change(hand, registry, SetPermission(A, Right.SUBSCRIBE))
    assert verdict.result == AGAIN
    assert change(hand, registry, SetPermission(A, Right.SUBSCRIBE)) == Verdict(DONE)
    assert registry.may(STREAM, A, Right.SUBSCRIBE, hand.now)


def test_what_an_answer_means() -> None:
    assert judge(Answered(1, Written(1, 2))) == Verdict(DONE)
    assert judge(Answered(1, Written(1, 0, "stale: read it"))).result == AGAIN
    assert judge(Answered(1, Written(1, 0, "forbidden: no"))) == Verdict(REFUSED, "forbidden: no")
    assert judge(Answered(1, Written(1, 0, "stalemate"))).result == REFUSED
    assert judge(Answered(1, None, "timeout")) == Verdict(UNANSWERED, "timeout")


def test_what_would_be_refused_is_not_proposed() -> None:
    _, registry = member(Table())
    with pytest.raises(LocalError, match="forbidden"):
        registry.propose(PUBLISHER, STREAM, SetPermission(A, 1), START)


def test_an_unfinished_registry_is_none() -> None:
    class Unfinished(BlockRegistry):
        knows = Registry.knows

    with pytest.raises(TypeError, match="knows"):
        Unfinished(Table())


def test_a_registry_says_what_it_cannot_do() -> None:
    hand, _ = member(Table())
    assert hand(Request(9, ListChains(0))) == [Answered(9, None, "no-list")]
