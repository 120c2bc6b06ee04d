"""A node's view of the registry: the chains it follows, read from a tracker and checked by itself.

A chain is read in pages until we hold as much as the tracker has; every change is checked. It is
read again when the tracker says that it changed, every minute or so, and whenever the tracker
that we ask changes. A tracker that serves what does not hold, or another history than the one we
hold, breaks the protocol. One that is merely behind does not: it may copy from the writer.
"""

import random
from collections.abc import Callable

import msgspec

from anabranch.core.changes import Right, unpack_page
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Effect,
    Event,
    Follow,
    Learned,
    Notice,
    Request,
    Send,
    Sizes,
    Store,
)
from anabranch.core.messages import (
    ChainChanged,
    ChainList,
    ChainPage,
    Contact,
    Control,
    ReadChain,
    Written,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import (
    ChainState,
    NetworkState,
    StreamState,
    is_chain_name,
    new_chain,
)
from anabranch.core.registry_requests import MAX_REQUESTS, Requests
from anabranch.core.registry_sources import Sources
from anabranch.core.rendezvous import settings_of
from anabranch.core.service import Service
from anabranch.core.timers import Timers

REFRESH_S = 60.0
ANSWER_S = 3.0  # how long a tracker may take to answer a read
DOUBT_EVERY_S = 0.5
NO_GENESIS_S = 1.0  # when to ask again a tracker that does not know the network yet
BUSY_S = 0.1  # when to try again if nobody is there to take what would be read
MAX_FOLLOWED = 2_000
MAX_READS = 256  # under way at once

READ, REFRESH, BUSY = "read", "refresh", "busy"


class _Followed(msgspec.Struct):
    """A chain that we keep up to date."""

    state: ChainState
    ticket: int = 0  # of the read under way
    asked: NodeId | None = None  # whom; None: no read is under way
    again: bool = False  # something happened after we asked
    known: bool = False  # it has been read to its end at least once
    told: int = -1  # the height that the application was told last
    doubted_at: float = 0.0
    doubted: bool = False  # somebody waits to hear even that nothing has changed


class RegistryReader(Service):
    """Follows chains of the registry for a node, or for a tracker that copies them."""

    messages = (ChainPage, Written, ChainList, ChainChanged)
    events = (Follow, Request)

    def __init__(
        self,
        network: bytes,
        verify: Verify,
        found: Contact,
        rng: random.Random,
        *,
        me: NodeId | None = None,
        copies: Callable[[], bool] | None = None,
        max_followed: int = MAX_FOLLOWED,
    ) -> None:
        """`copies` lets every change that is read be stored, and says if there is room for more."""
        self.network_state = NetworkState(network)
        self._verify = verify
        self._rng = rng
        self._copies = copies
        self._max_followed = max_followed
        self._sources = Sources(found, me)
        self._followed = {NETWORK: _Followed(self.network_state)}
        self._due: dict[str, None] = {}  # chains to be read, in this order
        self._reads: dict[int, str] = {}  # under way: the chain by the ticket
        self._source: NodeId | None = None  # whom we asked last
        self._requests = Requests()
        self._ticket = 0
        self._timers: Timers[tuple[str, str | int]] = Timers()

    # --- What others may ask --------------------------------------------------------------

    def knows(self, chain: str) -> bool:
        """Tell whether a chain has been read to its end, and is kept up to date."""
        followed = self._followed.get(chain)
        return followed is not None and followed.known

    def state(self, chain: str) -> ChainState:
        """Return a chain that is followed, as far as it has been read."""
        followed = self._followed.get(chain)
        if followed is None:
            raise LocalError(f"the chain {chain!r} is not followed: follow it first")
        return followed.state

    def stream(self, name: str) -> StreamState | None:
        """Return what is known of a stream; None unless it is followed and has been read."""
        followed = self._followed.get(name)
        if followed is None or not followed.known:
            return None
        return followed.state if isinstance(followed.state, StreamState) else None

    def directory(self, part: StreamPart) -> PartSettings | None:
        """Return the settings of a part of a stream that we follow."""
        return settings_of(part, self.stream(part.stream), self.network_state.trackers)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether a publisher may publish to a part, as far as we know."""
        stream = self.stream(part.stream)
        if stream is None or stream.created is None:
            return False
        known = part.partition < stream.created.partitions
        return known and stream.may(publisher, Right.PUBLISH, now)

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Read a chain anew, at most twice a second: Learned answers, even if it is as it was."""
        followed = self._followed.get(stream)
        if followed is None:
            return []
        next_at = followed.doubted_at + DOUBT_EVERY_S
        if now < next_at:
            self._timers.sooner((REFRESH, stream), next_at)
            return self._done([], now)
        followed.doubted_at = now
        followed.doubted = True
        self._read(stream)
        return self._done([], now)

    @property
    def can_ask(self) -> bool:
        """Whether there is a tracker that can be asked now."""
        return self._sources.current() is not None

    def listens_to(self, tracker: NodeId) -> bool:
        """Tell whether a tracker is one of those that we read from, and is there."""
        return self._sources.is_up(tracker)

    def adopt(self, state: ChainState, at: float | None = None) -> None:
        """Follow a chain from where this state stands, whatever we held; read on now, or then."""
        followed = self._followed.setdefault(state.chain, _Followed(state))
        followed.state = state
        if isinstance(state, NetworkState):
            self.network_state = state
        self._give_up_read(followed)
        if at is None:
            self._due[state.chain] = None
        else:
            self._due.pop(state.chain, None)
            self._timers.set((REFRESH, state.chain), at)

    def forget(self, chain: str) -> None:
        """Follow a chain no more; the network's own stays."""
        followed = self._followed.get(chain)
        if followed is None or chain == NETWORK:
            return
        self._give_up_read(followed)
        del self._followed[chain]
        self._due.pop(chain, None)
        self._timers.cancel((REFRESH, chain))

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {
            "followed chains": (len(self._followed), self._max_followed + 1),
            "registry reads": (len(self._reads), MAX_READS),
            "registry requests": (len(self._requests), MAX_REQUESTS),
            **self._sources.sizes(),
        }

    # --- Events ---------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Hold the tracker that was found and read the network's chain from it."""
        self._due = dict.fromkeys(self._followed)
        effects = self._sources.start(now)
        return self._done(effects + self._learn_trackers(now), now)

    def stop(self) -> list[Effect]:
        """Let go of every tracker; this reader reads no more."""
        return self._sources.stop()

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Take a Follow or a Request."""
        if type(event) is Follow:
            return self._done(self._follow(event.chain), now)
        assert type(event) is Request
        return self._done(self._requests.add(event, now), now)

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take an answer, or the word that a chain has changed."""
        effects: list[Effect] = []
        if type(message) is ChainPage:
            effects = self._page(sender, message, now)
        elif type(message) is ChainChanged:
            effects = self._changed(sender, message)
        elif type(message) is Written or type(message) is ChainList:
            effects, chain = self._requests.answer(sender, message)
            if chain in self._followed:  # it was written, or it is stale: there is news
                self._read(chain)
        return self._done(effects, now)

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Ask again whoever can be asked now."""
        if not up:
            self._unask(peer)
        return self._done(self._sources.link(peer, up, now), now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects = self._sources.wake(now) + self._requests.expire(now)
        for kind, key in self._timers.pop_due(now):
            if kind == READ and isinstance(key, int) and key in self._reads:
                effects += self._unanswered(self._reads[key], now)
            elif kind == REFRESH and isinstance(key, str):
                self._read(key)
        return self._done(effects, now)

    # --- Reading --------------------------------------------------------------------------

    def _follow(self, chain: str) -> list[Effect]:
        followed = self._followed.get(chain)
        if followed is not None:
            return [Learned(chain, followed.state.height)] if followed.known else []
        if not is_chain_name(chain):
            return [Learned(chain, 0)]
        if len(self._followed) > self._max_followed:
            hint = f"at most {self._max_followed} can be followed at once"
            return [Notice(None, "too-many-chains", hint), Learned(chain, 0)]
        state = new_chain(chain, self.network_state.network)
        self._followed[chain] = _Followed(state)
        self._read(chain)
        return []

    def _read(self, chain: str) -> None:
        followed = self._followed[chain]
        if followed.asked is None:
            self._due[chain] = None
        else:
            followed.again = True  # the answer to come may be older than the reason to ask

    def _page(self, sender: NodeId, page: ChainPage, now: float) -> list[Effect]:
        chain = self._reads.get(page.ticket)
        followed = self._followed.get(chain) if chain is not None else None
        if followed is None or followed.asked != sender:
            return []  # it comes too late
        state = followed.state
        if page.chain != chain or page.after != state.height:
            raise RemoteError("wrong-page", page.chain)
        self._give_up_read(followed)
        self._due[chain] = None  # until all is well: if it is not, somebody else is asked
        effects: list[Effect] = []
        changes = unpack_page(page.changes)
        if state.height + len(changes) > max(page.height, state.height):
            raise RemoteError("wrong-page", "more changes than there are")
        for encoded in changes:
            state.apply(encoded, self._verify)
            if self._copies is not None:
                effects.append(Store(0, chain, state.height, encoded))
        if state.height < page.height:
            if not changes:
                raise RemoteError("wrong-page", "it says that there is more, and has none")
            return effects
        if chain == NETWORK and page.height == 0:  # a tracker that has just begun to copy
            del self._due[chain]
            self._timers.set((REFRESH, chain), now + NO_GENESIS_S)
            return []
        if state.height == page.height and state.head != page.head:
            raise RemoteError("contradiction", chain)
        if not followed.again:
            del self._due[chain]
        return effects + self._read_to_the_end(followed, now)

    def _read_to_the_end(self, followed: _Followed, now: float) -> list[Effect]:
        state, effects = followed.state, list[Effect]()
        chain = state.chain
        self._timers.set((REFRESH, chain), now + REFRESH_S * (0.75 + 0.5 * self._rng.random()))
        followed.known = True
        if followed.told != state.height or (followed.doubted and not followed.again):
            followed.told, followed.doubted = state.height, False
            if chain == NETWORK:
                effects += self._learn_trackers(now)
            effects.append(Learned(chain, state.height))
        return effects

    def _learn_trackers(self, now: float) -> list[Effect]:
        entries = self.network_state.trackers
        return self._sources.know([entry.contact for entry in entries], now) if entries else []

    def _changed(self, sender: NodeId, message: ChainChanged) -> list[Effect]:
        followed = self._followed.get(message.chain)
        if followed is None or not self.listens_to(sender):
            return []
        if message.height > followed.state.height:
            self._read(message.chain)
        return []

    def _unanswered(self, chain: str, now: float) -> list[Effect]:
        followed = self._followed[chain]
        asked = followed.asked
        self._give_up_read(followed)
        self._due[chain] = None
        return self._sources.pass_over(asked, now) if asked is not None else []

    def _give_up_read(self, followed: _Followed) -> None:
        if followed.asked is not None:
            del self._reads[followed.ticket]
            self._timers.cancel((READ, followed.ticket))
            followed.asked = None

    def _unask(self, peer: NodeId) -> None:
        """What was asked of a peer whose link ended is to be asked again."""
        for chain in list(self._reads.values()):
            if self._followed[chain].asked == peer:
                self._give_up_read(self._followed[chain])
                self._due[chain] = None
        self._requests.unsend(peer)

    # --- Asking ---------------------------------------------------------------------------

    def _done(self, effects: list[Effect], now: float) -> list[Effect]:
        """Ask what can be asked now, and arm the timer."""
        source = self._sources.current()
        if source != self._source:
            self._source = source
            for followed in self._followed.values():
                self._give_up_read(followed)
            self._due |= dict.fromkeys(self._followed)
        if source is not None:
            effects += self._ask_chains(source, now)
        effects += self._requests.send(self._sources.writer, source, self._sources.is_up)
        times = (self._timers.next_at, self._sources.wakeup_at, self._requests.wakeup_at)
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects

    def _ask_chains(self, source: NodeId, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._due and len(self._reads) < MAX_READS:
            if self._copies is not None and not self._copies():
                self._timers.sooner((BUSY, 0), now + BUSY_S)
                break
            chain = next(iter(self._due))
            del self._due[chain]
            followed = self._followed[chain]
            self._ticket += 1
            followed.ticket, followed.asked, followed.again = self._ticket, source, False
            self._reads[self._ticket] = chain
            self._timers.set((READ, self._ticket), now + ANSWER_S)
            effects.append(Send(source, ReadChain(self._ticket, chain, followed.state.height)))
        return effects
