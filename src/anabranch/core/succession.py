"""Which tracker writes: the first of the network's list, and while it is gone the next one.

A tracker writes if every tracker before it in the list has been without a link to it for a while.
Otherwise it passes what it is asked to write on to the first of them that it is linked with, and
passes the answer back. What can be neither written nor passed on waits, since one or the other
will be possible soon: a tracker that has just started writes nothing before it has compared its
registry with another's, or found that there is nobody to compare it with.

Two may write at the same time where they cannot see each other. That is safe: the changes of both
are kept (history.py). It is only better avoided. So a tracker that is asked to write, and does not
answer or refuses what is right, is passed over; and what it says it has written we keep, too. It
cannot keep a revocation out of the registry.

A change that is under way already is not passed on again, whoever asks for it: so it cannot run in
circles among trackers that do not agree on the list.
"""

from collections.abc import Callable, Container

import msgspec

from anabranch.core.changes import decode_change, hash_change
from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import WriteChange, Written
from anabranch.core.registry_keeper import RegistryKeeper, refuse
from anabranch.core.timers import Timers

TAKEOVER_S = 5.0  # how long those before us must have been gone
ALONE_S = 3.0  # after which a tracker that reached no other one since its start may write,
COMPARING_S = 10.0  # or which it may take to compare its registry with one that it reached
UNDER_WAY_S = 8.0  # how long a change may wait, or be with other trackers,
ANSWER_S = 6.0  # and with one of them, which may itself have to wait until it takes over
DOUBT_S = 1.0  # in which we should learn why another tracker refuses what seems right to us
MAX_UNDER_WAY = 1_024

DECIDE, ANSWER, EXPIRE = "decide", "answer", "expire"  # what is due


class _UnderWay(msgspec.Struct):
    """A change that waits, or that another tracker has been asked to write, and who wants it."""

    change: bytes
    wanted_by: list[tuple[NodeId, int]]  # with their tickets
    to: NodeId | None = None
    ticket: int = 0
    silent: list[NodeId] = msgspec.field(default_factory=list)  # who was asked and said nothing


class Succession:
    """Decides who writes a change, and sees that its author gets an answer."""

    def __init__(
        self,
        me: NodeId,
        keeper: RegistryKeeper,
        links: Container[NodeId],
        has_compared: Callable[[], bool],
        follow: NodeId | None,
    ) -> None:
        """`follow`: who writes until the network names its trackers; None: we do."""
        self._me = me
        self._keeper = keeper
        self._links = links
        self._has_compared = has_compared
        self._follow = follow
        self._order: tuple[NodeId, ...] = ()  # the network's trackers
        self._gone_at: dict[NodeId, float] = {}  # of those without a link to us, since when
        self._began_at = 0.0
        self._is_ready = False
        self._under_way: dict[bytes, _UnderWay] = {}  # by the hash of the change
        self._tickets: dict[int, bytes] = {}
        self._ticket = 0
        self._wanted = 0
        self._timers: Timers[tuple[str, bytes]] = Timers()

    @property
    def wakeup_at(self) -> float | None:
        """When a change has been under way for too long, or may be written here."""
        return self._timers.next_at

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"changes under way": (self._wanted, MAX_UNDER_WAY)}

    # --- Who writes -----------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin; it is now that nobody has a link to us yet."""
        self._began_at = now
        self.know(now)

    def know(self, now: float) -> None:
        """Learn, at first and when the network's chain has changed, who its trackers are."""
        self._order = tuple(entry.node for entry in self._keeper.network_state.trackers)
        gone = [node for node in self._order if node not in self._links]
        self._gone_at = {node: self._gone_at.get(node, now) for node in gone}

    def link(self, peer: NodeId, up: bool, now: float) -> None:
        """Learn that a link stands, ended, or could not be dialled."""
        if up:
            self._gone_at.pop(peer, None)
            return
        if peer in self._order:
            self._gone_at.setdefault(peer, now)
        for name, entry in self._under_way.items():
            if entry.to == peer:
                self._recall(name, entry)

    def writes(self, now: float) -> bool:
        """Tell whether it is for us to write now."""
        return self._writes_at(now) <= now

    def _writes_at(self, now: float) -> float:
        """Return from when on we write, if nothing changes; infinity: never."""
        if not self._order:
            return now if self._follow is None else float("inf")
        before = self._before()
        if self._me not in self._order or any(node in self._links for node in before):
            return float("inf")
        return max([self._ready_at(now), *(self._gone_at[node] + TAKEOVER_S for node in before)])

    def _before(self) -> tuple[NodeId, ...]:
        """Return the trackers that come before us: all, if we are not one of them."""
        if not self._order:
            return () if self._follow is None else (self._follow,)
        at = self._order.index(self._me) if self._me in self._order else len(self._order)
        return self._order[:at]

    def _ready_at(self, now: float) -> float:
        """Return from when on our registry is as good as it can be after a start."""
        others = [node for node in self._order if node != self._me]
        is_alone = not any(node in self._links for node in others)
        at = self._began_at + (ALONE_S if is_alone else COMPARING_S)
        if not others or self._has_compared() or at <= now:
            self._is_ready = True
        return now if self._is_ready else at

    # --- Changes --------------------------------------------------------------------------

    def write(self, sender: NodeId, message: WriteChange, now: float) -> list[Effect]:
        """Write a change, or see that it is written; RemoteError unless it is signed."""
        self._keeper.check(message.change)
        name, ticket = hash_change(message.change), message.ticket
        entry = self._under_way.get(name)
        if entry is None and self.writes(now):
            return self._keeper.write(sender, ticket, message.change, now)
        if self._wanted >= MAX_UNDER_WAY:
            return [refuse(sender, ticket, "busy: try again in a moment")]
        self._wanted += 1
        if entry is not None:
            entry.wanted_by.append((sender, ticket))
            return []
        self._under_way[name] = _UnderWay(message.change, [(sender, ticket)])
        self._timers.set((EXPIRE, name), now + UNDER_WAY_S)
        return self.go_on(now)

    def written(self, sender: NodeId, message: Written, now: float) -> list[Effect]:
        """Pass an answer back to whoever wants it, unless there is reason to doubt it."""
        name = self._tickets.get(message.ticket)
        if name is None or self._under_way[name].to != sender:
            return []  # it comes too late
        change = self._under_way[name].change
        fits = self._keeper.fits(change)
        if message.problem and fits and self._me in self._order:
            self._timers.sooner((ANSWER, name), now + DOUBT_S)
            return []
        effects = self._finish(name, message)
        if fits and not message.problem:
            effects += self._keeper.copy(sender, decode_change(change).chain, change)
        return effects

    def go_on(self, now: float) -> list[Effect]:
        """Write what waits, or pass it on, if that can be done now."""
        if len(self._under_way) == len(self._tickets):
            return []  # nothing waits
        writes_at = self._writes_at(now)
        if now < writes_at < float("inf"):
            self._timers.set((DECIDE, b""), writes_at)
        effects: list[Effect] = []
        for name, entry in list(self._under_way.items()):
            if entry.to is not None:
                continue
            to = self._whom_to_ask(entry)
            if writes_at <= now or (entry.silent and self._me in self._order):
                self._forget(name)
                for sender, ticket in entry.wanted_by:
                    effects += self._keeper.write(sender, ticket, entry.change, now)
            elif to is not None:
                self._ticket += 1
                entry.to, entry.ticket = to, self._ticket
                self._tickets[self._ticket] = name
                self._timers.set((ANSWER, name), now + ANSWER_S)
                effects.append(Send(to, WriteChange(self._ticket, entry.change)))
        return effects

    def _whom_to_ask(self, entry: _UnderWay) -> NodeId | None:
        reached = [node for node in self._before() if node in self._links]
        return next((node for node in reached if node not in entry.silent), None)

    def wake(self, now: float) -> list[Effect]:
        """Go on with what waits, and answer what has been under way for too long."""
        effects: list[Effect] = []
        for kind, name in self._timers.pop_due(now):
            entry = self._under_way.get(name)
            if kind == EXPIRE:
                problem = "unreachable: no tracker writes the registry just now; try again"
                effects += self._finish(name, Written(0, 0, problem))
            elif kind == ANSWER and entry is not None and entry.to is not None:
                entry.silent.append(entry.to)
                self._recall(name, entry)
        return effects + self.go_on(now)

    def _finish(self, name: bytes, answer: Written) -> list[Effect]:
        entry = self._forget(name)
        return [
            Send(sender, msgspec.structs.replace(answer, ticket=ticket))
            for sender, ticket in entry.wanted_by
        ]

    def _forget(self, name: bytes) -> _UnderWay:
        entry = self._under_way.pop(name)
        self._wanted -= len(entry.wanted_by)
        self._timers.cancel((EXPIRE, name))
        self._recall(name, entry)
        return entry

    def _recall(self, name: bytes, entry: _UnderWay) -> None:
        """Let a change wait again, whoever was asked to write it."""
        self._timers.cancel((ANSWER, name))
        self._tickets.pop(entry.ticket, None)
        entry.to = None
