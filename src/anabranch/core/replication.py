"""How trackers come to have the same registry: they compare their heads and read what they lack.

Every tracker that the network names holds all chains and a link to every other one. When a link
comes up, and from time to time, each asks the other for its heads; where they differ it reads the
chain and adds what it did not have. Both do so, and the union is the same for both. Whoever adds
a change says so at once to all others.

A chain is read in the order of who is asked. As long as our first changes are its first changes,
too, it tells only the rest; otherwise one of us knows of a branch of which the other does not, and
all of it is read. A page must be on our disk before the next one is asked for: so nobody can send
us more than we can bear, and what does not fit is known to be the fault of who sent it.

What a tracker is known to have otherwise comes first. Chains that somebody merely asked us about
(look_ups.py) are read while there is nothing of that kind to begin with, and hold nothing up.

A tracker that the network does not name follows the named ones in the same way; of the network it
knows, at first, only the one at which it was told to look.
"""

import random
from collections.abc import Container, Mapping

from anabranch.core.changes import MAX_NETWORK_TRACKERS, unpack_page
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.look_ups import MAX_ASKED, LookUps
from anabranch.core.machine import Disconnect, Effect, Learned, Send, Sizes
from anabranch.core.messages import (
    ChainChanged,
    ChainPage,
    Contact,
    Control,
    HeadList,
    ListHeads,
    ReadChain,
)
from anabranch.core.messages.registry import NETWORK, NO_HASH
from anabranch.core.redial import Redial
from anabranch.core.registry import is_chain_name
from anabranch.core.registry_keeper import MAX_COPIED_CHAINS, RegistryKeeper
from anabranch.core.replica import Read, Replica
from anabranch.core.timers import Timers

COMPARE_EVERY_S = 30.0
COMPARE_AGAIN_S = 5.0  # after a tracker did not answer, or our disk failed
ANSWER_S = 4.0
MAX_CLAIMS = 1_000  # chains that one tracker has otherwise, and that we have not read from it yet
MAX_READS = 8  # at a time, from one tracker,
MAX_READS_BY_NAME = 4  # of chains that somebody merely named
MAX_RESTARTS = 4  # how often what is being read may change its order under our eyes

COMPARE, LISTING, READING = "compare", "listing", "reading"

_UNKNOWN = (0, b"")  # a claim of which we do not know what it claims


class Replication:
    """Keeps our registry and the other trackers' the same."""

    messages = (ChainPage, HeadList, ChainChanged)

    def __init__(
        self,
        me: NodeId,
        keeper: RegistryKeeper,
        links: Container[NodeId],
        rng: random.Random,
        follow: Contact | None = None,
    ) -> None:
        """`links` are those that stand, kept up to date by whoever owns them."""
        self._me = me
        self._keeper = keeper
        self._links = links
        self._rng = rng
        self._follow = follow
        self._listed_at = ""  # where the network first said that this one is
        self._trackers: dict[NodeId, str] = {}  # all others, in the network's order
        self._replicas: dict[NodeId, Replica] = {}  # those of them that are linked with us
        self._look_ups = LookUps()
        self._redial = Redial(rng)
        self._ticket = 0
        self._timers: Timers[tuple[str, NodeId, str]] = Timers()
        self.has_compared = False  # with any tracker, since we started

    # --- What others may ask --------------------------------------------------------------

    @property
    def wakeup_at(self) -> float | None:
        """When something is due."""
        times = (self._timers.next_at, self._redial.wakeup_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def can_ask(self) -> bool:
        """Whether any other tracker is linked with us."""
        return bool(self._replicas)

    def can_look_up(self, chain: str, sender: NodeId) -> bool:
        """Tell whether there is anybody to ask for a chain that a node named, and room for it."""
        return self.can_ask and self._look_ups.has_room(chain, sender)

    def copies_from(self, node: NodeId) -> bool:
        """Tell whether a peer is one of the trackers that we ask."""
        return node in self._replicas

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        replicas = self._replicas.values()
        return {
            "replicas": (len(replicas), MAX_NETWORK_TRACKERS),
            "claims": (max((len(r.claims) for r in replicas), default=0), MAX_CLAIMS),
            "reads": (max((len(r.reads) for r in replicas), default=0), MAX_READS),
            **self._look_ups.sizes(),
        }

    # --- Whom we copy from ----------------------------------------------------------------

    def know(self, now: float) -> list[Effect]:
        """Learn, at first and when the network's chain has changed, who its trackers are."""
        self._trackers = dict(self._contacts())
        effects = self._redial.hold(self._trackers, self._links)
        for node in [node for node in self._replicas if node not in self._trackers]:
            effects += self._leave(node)
        for node in self._trackers:
            if node in self._links and node not in self._replicas:
                effects += self._meet(node, now)
        return effects

    def _contacts(self) -> Mapping[NodeId, str]:
        """Return the other trackers of the network; until it names any, the one we were given."""
        entries = self._keeper.network_state.trackers
        follow = self._follow
        if not entries:
            return {} if follow is None else {follow.node: follow.address}
        listed = {entry.node: entry.address for entry in entries if entry.node != self._me}
        if follow is not None and follow.node in listed:
            # Where we found it is known to work, until the network says that it has moved.
            self._listed_at = self._listed_at or listed[follow.node]
            if listed[follow.node] == self._listed_at:
                listed[follow.node] = follow.address
        return listed

    def link(self, peer: NodeId, up: bool, now: float, at_fault: bool = False) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        if up:
            self._redial.up(peer)
            is_new = peer in self._trackers and peer not in self._replicas
            return self._meet(peer, now) if is_new else []
        self._redial.down(peer, now, at_fault)
        return self._leave(peer) if peer in self._replicas else []

    def _meet(self, node: NodeId, now: float) -> list[Effect]:
        replica = self._replicas[node] = Replica(node)
        if self._keeper.network_state.genesis is None:
            replica.claims[NETWORK] = _UNKNOWN  # before all others: it names the other trackers
        return self._compare(replica, now)

    def _leave(self, node: NodeId) -> list[Effect]:
        replica = self._replicas.pop(node)
        for kind in (COMPARE, LISTING):
            self._timers.cancel((kind, node, ""))
        for chain in replica.reads:
            self._timers.cancel((READING, node, chain))
        return [self._looked_up(chain) for chain in self._look_ups.leave(node)]

    # --- Heads ----------------------------------------------------------------------------

    def _compare(self, replica: Replica, now: float) -> list[Effect]:
        """Begin to compare all heads, unless we are at it."""
        every = COMPARE_EVERY_S * self._rng.uniform(0.75, 1.25)
        self._timers.set((COMPARE, replica.node, ""), now + every)
        if replica.is_comparing:
            return []
        replica.is_comparing, replica.listed, replica.after = True, 0, None
        return [*self._ask_heads(replica, "", self._keeper.digest, now), *self._go_on(replica, now)]

    def _ask_heads(self, replica: Replica, after: str, digest: bytes, now: float) -> list[Effect]:
        self._ticket += 1
        replica.ticket = self._ticket
        self._timers.set((LISTING, replica.node, ""), now + ANSWER_S)
        return [Send(replica.node, ListHeads(replica.ticket, after, digest))]

    def _heads(self, replica: Replica, message: HeadList, now: float) -> list[Effect]:
        if message.ticket != replica.ticket:
            return []  # it comes too late
        replica.ticket = 0
        self._timers.cancel((LISTING, replica.node, ""))
        last, replica.after = replica.after or "", None
        if not message.same:
            replica.listed += len(message.heads)
            if replica.listed > MAX_COPIED_CHAINS or (message.more and not message.heads):
                raise RemoteError("wrong-list", f"{replica.listed} heads")
            for head in message.heads:
                if head.chain <= last:
                    raise RemoteError("wrong-list", "its names are not in order")
                last = head.chain
                self._claim(replica, head.chain, (head.height, head.head), now)
            replica.after = last if message.more else None
        return self._go_on(replica, now)

    def _changed(self, replica: Replica, message: ChainChanged, now: float) -> list[Effect]:
        claim = (message.height, message.head)
        self._claim(replica, message.chain, _UNKNOWN if message.head == NO_HASH else claim, now)
        return self._go_on(replica, now)

    def _claim(self, replica: Replica, chain: str, claim: tuple[int, bytes], now: float) -> None:
        """Take note that a tracker has a chain otherwise than we have it, if it has."""
        if not is_chain_name(chain):
            raise RemoteError("chain-name", chain[:64])
        if replica.claims.get(chain) == _UNKNOWN:
            return  # it will be read in any case
        if self._has(chain, claim):
            replica.claims.pop(chain, None)
        elif chain in replica.claims or len(replica.claims) < MAX_CLAIMS:
            replica.claims[chain] = claim
        else:
            self._timers.sooner((COMPARE, replica.node, ""), now + COMPARE_AGAIN_S)

    def _has(self, chain: str, claim: tuple[int, bytes]) -> bool:
        """Tell whether we have all that somebody has; what we have beyond it is his to read."""
        height, head = claim
        return self._keeper.history(chain).head_at(height) == head

    # --- Chains ---------------------------------------------------------------------------

    def look_up(self, chain: str, sender: NodeId, now: float) -> list[Effect]:
        """Ask for a chain that a node named; a Learned says that all who were asked answered."""
        if chain in self._look_ups:
            return []
        asked = [node for node in self._trackers if node in self._replicas][:MAX_ASKED]
        self._look_ups.begin(chain, sender, asked)
        return [effect for node in asked for effect in self._go_on(self._replicas[node], now)]

    def forget(self, chain: str) -> None:
        """Look a chain up no more: nobody waits for it."""
        self._look_ups.forget(chain)

    def _answered(self, chain: str, node: NodeId) -> list[Effect]:
        """Take note that a tracker has told all it knows of a chain, or that it will not."""
        return [self._looked_up(chain)] if self._look_ups.told(chain, node) else []

    def _looked_up(self, chain: str) -> Effect:
        return Learned(chain, self._keeper.history(chain).height)

    def _go_on(self, replica: Replica, now: float) -> list[Effect]:
        """Read what can be read now; when nothing is left, compare the next heads, if any."""
        effects: list[Effect] = []
        for chain, claim in list(replica.claims.items()):
            if len(replica.reads) >= MAX_READS or not self._keeper.has_room:
                return effects
            if chain in replica.reads or self._keeper.is_storing(chain):
                continue  # what comes may be what it claims
            del replica.claims[chain]
            if not self._has(chain, claim):
                effects += self._begin(replica, chain, now)
        effects += self._go_on_by_name(replica, now)
        if not replica.is_comparing or replica.ticket or not replica.is_read:
            return effects
        if replica.after is not None:
            return effects + self._ask_heads(replica, replica.after, NO_HASH, now)
        replica.is_comparing, self.has_compared = False, True
        return effects

    def _go_on_by_name(self, replica: Replica, now: float) -> list[Effect]:
        """Read what somebody merely named, as far as there is room beside all else."""
        effects: list[Effect] = []
        for chain in self._look_ups.waiting(replica.node):
            has_room = len(replica.reads) < MAX_READS and replica.by_name < MAX_READS_BY_NAME
            if not has_room or not self._keeper.has_room:
                break
            if chain not in replica.reads and not self._keeper.is_storing(chain):
                self._look_ups.ask(chain, replica.node)
                effects += self._begin(replica, chain, now, by_name=True)
        return effects

    def _begin(
        self, replica: Replica, chain: str, now: float, by_name: bool = False
    ) -> list[Effect]:
        history = self._keeper.history(chain)
        read = Read(chain, history.height, history.head, by_name=by_name)
        replica.reads[chain] = read
        return self._ask(replica, read, now)

    def _ask(self, replica: Replica, read: Read, now: float) -> list[Effect]:
        self._ticket += 1
        read.ticket = self._ticket
        self._timers.set((READING, replica.node, read.chain), now + ANSWER_S)
        return [Send(replica.node, ReadChain(read.ticket, read.chain, read.after, read.head))]

    def _page(self, replica: Replica, page: ChainPage, now: float) -> list[Effect]:
        read = replica.reads.get(page.chain)
        if read is None or read.ticket != page.ticket:
            return []  # it comes too late
        read.ticket = 0
        self._timers.cancel((READING, replica.node, read.chain))
        if page.after != read.after:
            if page.after:
                raise RemoteError("wrong-page", f"after {page.after} and not {read.after}")
            read.after, read.head = 0, self._keeper.network
            read.restarts += 1
            if read.restarts > MAX_RESTARTS:
                return self._give_up(replica, read, now)
        changes = unpack_page(page.changes)
        read.advance(page, changes)
        history = self._keeper.history(read.chain)
        new = [encoded for encoded in changes if not history.has(encoded)]
        for encoded in new:
            self._keeper.check_copy(read.chain, encoded)
        effects: list[Effect] = []
        for encoded in new:
            effects += self._keeper.copy(replica.node, read.chain, encoded)
            if any(type(effect) is Disconnect for effect in effects):
                return effects  # it does not fit
        return effects + self._read_on(replica, read, now)

    def _read_on(self, replica: Replica, read: Read, now: float) -> list[Effect]:
        """Ask for the next page once the last one is on the disk."""
        if read.ticket or self._keeper.is_storing(read.chain):
            return []
        if not read.is_over:
            return self._ask(replica, read, now)
        del replica.reads[read.chain]
        return self._answered(read.chain, replica.node) + self._go_on(replica, now)

    def _give_up(self, replica: Replica, read: Read, now: float) -> list[Effect]:
        """Leave a chain for now, and compare anew in a while."""
        del replica.reads[read.chain]
        self._timers.cancel((READING, replica.node, read.chain))
        self._timers.sooner((COMPARE, replica.node, ""), now + COMPARE_AGAIN_S)
        return self._answered(read.chain, replica.node) + self._go_on(replica, now)

    def stored(self, chain: str, failed: bool, now: float) -> list[Effect]:
        """Learn that a change is on the disk, or could not be put there."""
        effects: list[Effect] = []
        for replica in list(self._replicas.values()):
            read = replica.reads.get(chain)
            if read is not None and failed and not read.ticket:
                effects += self._give_up(replica, read, now)
            elif read is not None:
                effects += self._read_on(replica, read, now)
            effects += self._go_on(replica, now)
        return effects

    # --- Messages and time ----------------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take what a tracker says; RemoteError costs it its link."""
        replica = self._replicas.get(sender)
        if replica is None:
            return []  # we have asked it nothing
        if type(message) is ChainPage:
            return self._page(replica, message, now)
        if type(message) is HeadList:
            return self._heads(replica, message, now)
        assert type(message) is ChainChanged
        return self._changed(replica, message, now)

    def wake(self, now: float) -> list[Effect]:
        """Dial, compare, and give up on answers that did not come."""
        effects = self._redial.wake(now)
        for kind, node, chain in self._timers.pop_due(now):
            replica = self._replicas[node]
            if kind == COMPARE:
                effects += self._compare(replica, now)
            elif kind == LISTING:
                replica.ticket, replica.is_comparing, replica.after = 0, False, None
                self._timers.sooner((COMPARE, node, ""), now + COMPARE_AGAIN_S)
            else:
                effects += self._give_up(replica, replica.reads[chain], now)
        return effects
