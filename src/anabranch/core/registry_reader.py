"""A node's view of the registry: the chains it follows, read from trackers and checked by itself.

Every chain is read from two trackers, if there are two, and we have the union of what they have:
what one of them hides, the other one shows. A chain is read again when a tracker says that it
changed, every minute or so, whenever we are in doubt, and whenever others are asked.

A tracker that serves what does not hold breaks the protocol. One that is behind does not, for a
while: changes take their time from one tracker to the next. If it still lacks what we have known
for long, and once more when it is asked again, it was found out, and is left.

A right that is known counts until it expires or is revoked, also while no tracker can be reached:
the overlays go on without trackers. The owner of a stream, or the node itself, may demand that a
tracker has confirmed the stream's chain within some time.
"""

import random
from collections.abc import Iterable, Sequence
from math import inf

from anabranch.core.changes import PUBLISH, Action, Right, TrackerEntry, decode_change
from anabranch.core.errors import LocalError
from anabranch.core.followed_chain import LAG_S, MORE, TOO_OFTEN, FollowedChain
from anabranch.core.history import History, make_change
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId, StreamPart, show
from anabranch.core.machine import Effect, Event, Follow, Learned, Notice, Request, Send, Sizes
from anabranch.core.messages import (
    ChainChanged,
    ChainList,
    ChainPage,
    Contact,
    Control,
    ReadChain,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.neighbour_ledgers import NeighbourLedgers
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import NetworkState, StreamState, is_chain_name
from anabranch.core.registry_reads import MAX_READS, Read, Reads, read_again_at
from anabranch.core.registry_requests import MAX_REQUESTS, Requests
from anabranch.core.registry_sources import Sources
from anabranch.core.registry_view import Registry
from anabranch.core.rendezvous import settings_of
from anabranch.core.timers import Timers

AGAIN_S = 2.0  # when a tracker that lacks something is asked once more
DOUBT_EVERY_S = 0.5
NO_GENESIS_S = 1.0  # when to ask again a tracker that does not know the network yet
ALONE_S = 180.0  # without a confirmation before streams are compared with neighbours,
ANNOUNCE_EVERY_S = 30.0  # and how often
UNCONFIRMED_S = 600.0  # without a confirmation before a notice says so
MAX_FOLLOWED = 2_000

REFRESH, DOUBT, COMPARE = "refresh", "doubt", "compare"
AGE, UNCONFIRMED, ANNOUNCE = "age", "unconfirmed", "announce"


class RegistryReader(Registry):
    """Follows chains of the registry for a node."""

    messages = (ChainPage, Written, ChainList, ChainChanged, ReadChain)
    events = (Follow, Request)

    def __init__(
        self,
        network: bytes,
        verify: Verify,
        found: Contact,
        rng: random.Random,
        others: Sequence[Contact] = (),
        confirm_within_s: float = inf,
    ) -> None:
        """`confirm_within_s` is this node's own demand; a stream's may be stricter."""
        self._network = network
        self._verify = verify
        self._rng = rng
        self._sources = Sources(found, rng, others)
        self._readers: tuple[NodeId, ...] = ()  # whom we ask
        self._viewed: dict[NodeId, None] = {}  # those of whom we remember what they have shown us
        self._left: frozenset[NodeId] = frozenset()  # as the directory was told
        self._followed = {NETWORK: FollowedChain(NETWORK, network, 0.0)}
        self.by_neighbours = NeighbourLedgers(verify)
        self._reads = Reads()
        self._requests = Requests()
        self._timers: Timers[tuple[str, str]] = Timers()
        self._began_at = 0.0
        self._confirm_within_s = confirm_within_s
        self._is_unconfirmed = False  # which was told

    # --- What others may ask --------------------------------------------------------------

    @property
    def network_state(self) -> NetworkState:
        """What is known of the network itself."""
        state = self._followed[NETWORK].history.state
        assert isinstance(state, NetworkState)
        return state

    @property
    def trackers(self) -> tuple[TrackerEntry, ...]:
        """The network's trackers, in the order of its list."""
        return self.network_state.trackers

    @property
    def storage(self) -> tuple[TrackerEntry, ...]:
        """The network's storage nodes."""
        return self.network_state.storage

    def knows(self, chain: str) -> bool:
        """Tell whether a chain has been read to its end, and is kept up to date."""
        followed = self._followed.get(chain)
        return followed is not None and followed.known

    def history(self, chain: str) -> History:
        """Return a chain that is followed, as far as it has been read."""
        followed = self._followed.get(chain)
        if followed is None:
            raise LocalError(f"the chain {chain!r} is not followed: follow it first")
        return followed.history

    def version(self, chain: str) -> int:
        """Return how many changes of a chain that is followed have been read."""
        return (self.by_neighbours.history(chain) or self.history(chain)).height

    def stream(self, name: str) -> StreamState | None:
        """Return what is known of a stream; None unless it is followed and has been read."""
        followed = self._followed.get(name)
        if followed is None or not followed.known:
            return None
        state = (self.by_neighbours.history(name) or followed.history).state
        return state if isinstance(state, StreamState) else None

    def directory(self, part: StreamPart) -> PartSettings | None:
        """Return the settings of a part of a stream that we follow; who was left comes last."""
        stream, left = self.stream(part.stream), self._sources.left
        return settings_of(part, stream, self.network_state.trackers, left)

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right, by what we know and as long as that counts."""
        state = self._counting(stream, now)
        return state is not None and state.may(user, right, now)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether a publisher may publish to a part, in the same way."""
        state = self._counting(part.stream, now)
        if not state or not state.created or part.partition >= state.created.partitions:
            return False
        return state.may(publisher, PUBLISH, now)

    def _counting(self, stream: str, now: float) -> StreamState | None:
        followed = self._followed.get(stream)
        return self.stream(stream) if followed and now < self._counts_until(followed) else None

    def _counts_until(self, followed: FollowedChain) -> float:
        """Return when a chain has to be confirmed again."""
        chain = followed.history
        state = (self.by_neighbours.history(chain.chain) or chain).state
        created = state.created if isinstance(state, StreamState) else None
        demanded_s = created.confirm_within_s if created is not None else 0
        return followed.heard_at + min(self._confirm_within_s, demanded_s or inf)

    def is_unconfirmed(self, stream: str, now: float) -> bool:
        """Tell whether rights on a stream do not count because no tracker has confirmed them."""
        followed = self._followed.get(stream)
        return followed is not None and followed.known and now >= self._counts_until(followed)

    def age_s(self, now: float) -> float:
        """Return for how long no tracker has confirmed one of the chains; of the oldest one."""
        heard = [each.heard_at for each in self._followed.values() if each.known]
        return max(0.0, now - max(min(heard, default=now), self._began_at))

    def confirmed_at(self, stream: str) -> float:
        """Return up to when we know all that those whom we ask know (0.0: never)."""
        followed = self._followed.get(stream)
        return followed.confirmed_at if followed is not None else 0.0

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Read a chain anew, at most twice a second: Learned answers, even if it is as it was."""
        followed = self._followed.get(stream)
        if followed is None:
            return []
        followed.wanted_last = now
        if followed.wanted_at is None:
            followed.wanted_at = now
        next_at = followed.asked_at + DOUBT_EVERY_S
        if now < next_at:
            self._timers.sooner((DOUBT, stream), next_at)
        else:
            followed.asked_at = now
            self._read(stream)
        return self._done([], now)

    def propose(
        self, signer: Signer, chain: str, actions: Action | Sequence[Action], now: float
    ) -> WriteChange:
        """Make and sign the change that comes next; LocalError if it would be refused."""
        return WriteChange(0, make_change(signer, self.history(chain), actions, now))

    def includes(self, proposal: WriteChange) -> bool:
        """Tell whether we have read a change that we proposed."""
        chain = decode_change(proposal.change).chain
        return chain in self._followed and self.history(chain).has(proposal.change)

    def forget(self, chain: str) -> None:
        """Follow a chain no more; the network's own stays."""
        if chain == NETWORK or self._followed.pop(chain, None) is None:
            return
        self._reads.forget(chain)
        self.by_neighbours.forget(chain)
        for kind in (REFRESH, DOUBT, COMPARE, AGE, UNCONFIRMED):
            self._timers.cancel((kind, chain))

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {
            "followed chains": (len(self._followed), MAX_FOLLOWED + 1),
            "registry reads": (self._reads.most_under_way, MAX_READS),
            "registry requests": (len(self._requests), MAX_REQUESTS),
            **self._sources.sizes(),
            **self.by_neighbours.sizes(),
        }

    # --- Events ---------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Hold the trackers that were found, to read the network's chain from them."""
        self._began_at = now
        self._timers.set((ANNOUNCE, NETWORK), now + ANNOUNCE_EVERY_S)
        return self._done(self._sources.start(now), now)

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Take a Follow or a Request."""
        if type(event) is Follow:
            return self._done(self._follow(event.chain, now), now)
        assert type(event) is Request
        return self._done(self._requests.add(event, now), now)

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take an answer, or the word that a chain has changed."""
        effects: list[Effect] = []
        if type(message) is ChainPage and sender in self._readers:
            effects = self._page(sender, message, now)
        elif type(message) is ChainChanged and sender in self._readers:
            followed = self._followed.get(message.chain)
            if followed is not None and message.head != followed.history.head:
                self._reads.want(sender, message.chain)
        elif isinstance(message, ChainPage | ChainChanged | ReadChain):
            effects = self._from_neighbour(sender, message, now)
        elif type(message) is Written or type(message) is ChainList:
            effects, chain = self._requests.answer(sender, message, self._readers)
            if chain in self._followed:  # it was written, or it is stale: there is news
                self._read(chain)
        return self._done(effects, now)

    def _from_neighbour(
        self, sender: NodeId, message: ChainPage | ChainChanged | ReadChain, now: float
    ) -> list[Effect]:
        """Exchange changes of a stream with a neighbour."""
        followed = self._followed.get(message.chain)
        if followed is None or not followed.known or message.chain == NETWORK:
            return []
        history = followed.history
        if isinstance(message, ChainPage):
            effects = self.by_neighbours.page(sender, message, history, now)
            if not followed.too_old and (until := self._counts_until(followed)) < inf:
                self._timers.set((AGE, message.chain), until)  # more may be demanded now
            return effects
        if isinstance(message, ChainChanged):
            return self.by_neighbours.announced(sender, message, history, now)
        return self.by_neighbours.asked(sender, message, history, now)

    def _announce(self, now: float) -> list[Effect]:
        """Compare with neighbours the streams that no tracker has confirmed for a while."""
        self._timers.set((ANNOUNCE, NETWORK), now + ANNOUNCE_EVERY_S)
        return [
            effect
            for chain, followed in self._followed.items()
            if chain != NETWORK and followed.known and now >= followed.heard_at + ALONE_S
            for effect in self.by_neighbours.announce(followed.history)
        ]

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Ask again whoever can be asked now."""
        if not up:
            self._requests.unsend(peer)
            self.by_neighbours.gone(peer)
        return self._done(self._sources.link(peer, up, now), now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects = self._sources.wake(now) + self._requests.wake(now)
        for tracker in dict.fromkeys(read.tracker for read in self._reads.overdue(now)):
            effects += self._sources.pass_over(tracker, now)
        for kind, chain in self._timers.pop_due(now):
            followed = self._followed[chain]
            if kind == COMPARE:
                self._read(chain, [t for t in self._readers if not followed.agrees(t)])
            elif kind == AGE:
                effects += self._aged(followed, now)
            elif kind == ANNOUNCE:
                effects += self._announce(now)
            elif kind == UNCONFIRMED:
                effects += self._unconfirmed()
            else:
                followed.asked_at = now
                self._read(chain)
        return self._done(effects, now)

    # --- Reading --------------------------------------------------------------------------

    def _follow(self, chain: str, now: float) -> list[Effect]:
        followed = self._followed.get(chain)
        if followed is not None:
            return [Learned(chain, followed.history.height)] if followed.known else []
        if not is_chain_name(chain):
            return [Learned(chain, 0)]
        if len(self._followed) > MAX_FOLLOWED:
            hint = f"at most {MAX_FOLLOWED} can be followed at once"
            return [Notice(None, "too-many-chains", hint), Learned(chain, 0)]
        self._followed[chain] = FollowedChain(chain, self._network, now)
        self._read(chain)
        return []

    def _read(self, chain: str, trackers: Iterable[NodeId] | None = None) -> None:
        for tracker in self._readers if trackers is None else trackers:
            self._reads.want(tracker, chain)

    def _page(self, sender: NodeId, page: ChainPage, now: float) -> list[Effect]:
        read = self._reads.end(page.ticket, sender)
        if read is None:
            return []  # it comes too late
        self._reads.want(sender, read.chain)  # unless all is well
        followed = self._followed[read.chain]
        height = followed.history.height
        result = followed.take(sender, page, read.asked_at, self._verify, now)
        if followed.history.height > height:
            self.by_neighbours.update(followed.history)
            # Whoever does not have this by then is late.
            self._timers.sooner((COMPARE, read.chain), now + LAG_S)
        if result == MORE:
            return []
        if result == TOO_OFTEN:
            return self._sources.pass_over(sender, now)
        if not read.again:
            self._reads.unwant(sender, read.chain)
        return self._read_to_the_end(followed, read, now)

    def _read_to_the_end(self, followed: FollowedChain, read: Read, now: float) -> list[Effect]:
        """A tracker has told us all that it had when it was asked."""
        chain, effects = read.chain, list[Effect]()
        if chain == NETWORK and not followed.history.height:  # it has just begun to copy
            self._timers.set((REFRESH, chain), now + NO_GENESIS_S)
            return []
        if read.tracker == self._readers[0] or (REFRESH, chain) not in self._timers:
            again_at = read_again_at(self._began_at, now, self._rng)
            self._timers.set((REFRESH, chain), again_at)
        since = followed.lacking_since(read.tracker)
        if since is None or since > read.asked_at - LAG_S:
            followed.heard_at = max(followed.heard_at, read.asked_at)
            if (until := self._counts_until(followed)) < inf:
                self._timers.set((AGE, chain), until)
            else:
                self._timers.cancel((AGE, chain))
            if chain == NETWORK:
                self._timers.set((UNCONFIRMED, chain), followed.heard_at + UNCONFIRMED_S)
                self._is_unconfirmed = False
        if since is not None:
            effects += self._suspect(followed, read, since, now)
        else:
            followed.view(read.tracker).suspected_at = None
        return effects + self._tell(followed, now)

    def _suspect(
        self, followed: FollowedChain, read: Read, since: float, now: float
    ) -> list[Effect]:
        """A tracker lacks what we have: let it have the time it needs, and then one more chance."""
        tracker, view = read.tracker, followed.view(read.tracker)
        excused_until = max(since, self._sources.came_at(tracker)) + LAG_S
        if tracker in self._sources.left:
            return []
        if read.asked_at < excused_until:
            self._timers.sooner((COMPARE, read.chain), excused_until)
            return []
        if view.suspected_at is None:
            view.suspected_at = read.asked_at
        if read.asked_at < view.suspected_at + AGAIN_S:
            self._timers.sooner((COMPARE, read.chain), max(now, view.suspected_at + AGAIN_S))
            return []
        view.suspected_at = None
        lacks = followed.history.height - view.after
        detail = f"{show(tracker)} does not show {lacks} changes of {read.chain} that others do"
        return [Notice(None, "stale-tracker", detail), *self._sources.leave(tracker, now)]

    def _tell(self, followed: FollowedChain, now: float) -> list[Effect]:
        """Say what is new; and if somebody waits for a word, that all have answered."""
        history, effects = followed.history, list[Effect]()
        if history.chain == NETWORK and not history.height:
            return []
        answered_at = followed.heard_by(self._readers)
        followed.confirmed_at = max(followed.confirmed_at, answered_at)
        is_answer = followed.wanted_at is not None and answered_at >= followed.wanted_at
        if is_answer:
            is_last = followed.wanted_last <= answered_at
            followed.wanted_at = None if is_last else followed.wanted_last
            followed.known = True
        counts_again = followed.too_old and now < self._counts_until(followed)
        is_news = followed.told != history.head or counts_again
        if followed.known and (is_answer or is_news):
            followed.told, followed.too_old = history.head, followed.too_old and not counts_again
            if history.chain == NETWORK:
                effects += self._learn_trackers(now)
            elif is_news and not counts_again:
                effects += self.by_neighbours.announce(history)
            effects.append(Learned(history.chain, history.height))
        return effects

    def _learn_trackers(self, now: float) -> list[Effect]:
        entries = self.network_state.trackers
        return self._sources.know([entry.contact for entry in entries], now) if entries else []

    def _aged(self, followed: FollowedChain, now: float) -> list[Effect]:
        """What we know of a chain does not count any more, since it has to be confirmed again."""
        until = self._counts_until(followed)
        if now < until:  # more is demanded no more
            if until < inf:
                self._timers.set((AGE, followed.history.chain), until)
            return []
        followed.too_old = True
        chain, height = followed.history.chain, followed.history.height
        minutes = (now - followed.heard_at) / 60
        hint = (
            f"no tracker has confirmed {chain} for {minutes:.0f} minutes, and it has to be: its "
            "rights do not count until one does"
        )
        effects: list[Effect] = [Notice(None, "registry-too-old", hint)]
        if followed.known:
            effects.append(Learned(chain, height))
        return effects

    def _unconfirmed(self) -> list[Effect]:
        """Say once that no tracker answers: revocations may be missed."""
        if self._is_unconfirmed:
            return []
        self._is_unconfirmed = True
        hint = (
            f"no tracker has confirmed the registry for {UNCONFIRMED_S / 60:.0f} minutes: known "
            "rights go on counting, and changes are not seen"
        )
        return [Notice(None, "registry-unconfirmed", hint)]

    # --- Asking ---------------------------------------------------------------------------

    def _done(self, effects: list[Effect], now: float) -> list[Effect]:
        """Ask what can be asked now, and arm the timer."""
        if self._sources.left != self._left:
            self._left = self._sources.left
            # The directory has another order: the parts of this node change their trackers.
            effects.append(Learned(NETWORK, self.version(NETWORK)))
        effects += self._change_readers(now)
        for read in self._reads.begin(now):
            view = self._followed[read.chain].view(read.tracker)
            question = ReadChain(read.ticket, read.chain, view.after, view.head)
            effects.append(Send(read.tracker, question))
        effects += self._requests.send(self._readers, now)
        machines = (self._timers.next_at, self._reads.wakeup_at)
        times = (*machines, self._sources.wakeup_at, self._requests.wakeup_at)
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects

    def _change_readers(self, now: float) -> list[Effect]:
        """Ask whom the sources name now, and let the others be."""
        before, self._readers = self._readers, self._sources.readers()
        if before == self._readers:
            return []
        for tracker in before:
            if tracker not in self._readers:
                self._reads.close(tracker)
        for tracker in self._readers:
            if tracker not in before:
                self._reads.open(tracker, self._followed)
        self._viewed |= dict.fromkeys(self._readers)
        for tracker in [each for each in self._viewed if not self._sources.holds(each)]:
            del self._viewed[tracker]
            for followed in self._followed.values():
                followed.forget(tracker)
        # Those who were waited for may be gone.
        waiting = [each for each in self._followed.values() if each.wanted_at is not None]
        effects = [effect for followed in waiting for effect in self._tell(followed, now)]
        return effects + self._change_readers(now)
