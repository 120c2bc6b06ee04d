"""A tracker's side of the registry: all chains in memory, served in pages, written through a disk.

The writer, which is the network's first tracker, takes changes; every other keeper answers reads
from its copy. A change counts once it is on the disk: until Stored comes it is neither shown nor
acknowledged, and whatever else is to be written to its chain waits in line behind it.

Who reads a chain is told when it changes, for as long as its link stands.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

import msgspec

from anabranch.core.changes import decode_change, pack_page
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Notice, Send, Sizes, Store, Stored
from anabranch.core.messages import (
    ChainChanged,
    ChainList,
    ChainPage,
    Control,
    ListChains,
    ReadChain,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import MAX_LISTED, MAX_PROBLEM, NETWORK
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import (
    STALE,
    ChainState,
    NetworkState,
    StreamState,
    check_signature,
    is_chain_name,
    new_chain,
)
from anabranch.core.rendezvous import settings_of

MAX_CHAINS = 100_000
MAX_IN_LINE = 1_024  # changes that others have asked for and that wait for the disk
MAX_COPIES_IN_LINE = 32_768  # changes that were read from the writer and wait for the disk
MAX_WATCHED = 2_050  # chains that one node is told of: a node follows 2,000 (registry_reader.py)
MAX_WATCHES = 1_000_000  # of all nodes together
MAX_SKEW_MS = 300_000  # how far the clock of a change's author may be from ours

_COPY_MARK = NodeId(b"")  # stands in line in place of whoever asked for a change


class _InLine(msgspec.Struct):
    """A change that waits to be written."""

    change: bytes
    sender: NodeId = _COPY_MARK
    ticket: int = 0


class _Kept(msgspec.Struct):
    """A chain with all its changes, and what is to be added to it."""

    state: ChainState
    changes: list[bytes] = msgspec.field(default_factory=list)
    line: deque[_InLine] = msgspec.field(default_factory=deque)  # the first is being stored


class RegistryKeeper:
    """Keeps the chains of a network."""

    def __init__(
        self,
        me: NodeId,
        network: bytes,
        verify: Verify,
        changes: Iterable[tuple[str, int, bytes]] = (),
        first: bool = True,
    ) -> None:
        """`changes` come from the disk; `first`: we write until the network names its trackers."""
        self._me = me
        self._verify = verify
        self._first = first
        self.network_state = NetworkState(network)
        self._chains = {NETWORK: _Kept(self.network_state)}
        self._streams: list[str] = []  # those that exist, sorted
        self._storing: dict[int, str] = {}  # the chain by the token
        self._token = 0
        self._in_line = 0
        self._copies_in_line = 0
        self._watchers: dict[str, dict[NodeId, None]] = {}  # by chain, which need not exist yet
        self._watched: dict[NodeId, dict[str, None]] = {}  # the same, by node
        self._watches = 0
        self._load(changes)

    # --- What others may ask --------------------------------------------------------------

    @property
    def is_writer(self) -> bool:
        """Whether changes are to be sent to us."""
        trackers = self.network_state.trackers
        return trackers[0].node == self._me if trackers else self._first

    @property
    def has_room(self) -> bool:
        """Whether more changes may be copied now."""
        return self._copies_in_line < MAX_IN_LINE

    def state(self, chain: str) -> ChainState | None:
        """Return a chain of which we have at least one change."""
        kept = self._chains.get(chain)
        return kept.state if kept is not None and kept.state.height else None

    def chains(self) -> list[str]:
        """Return the names of all chains that have changes."""
        return [chain for chain, kept in self._chains.items() if kept.state.height]

    def streams(self) -> list[str]:
        """Return the names of the streams that exist, sorted."""
        return list(self._streams)

    def directory(self, part: StreamPart) -> PartSettings | None:
        """Return the settings of a stream part."""
        state = self.state(part.stream)
        stream = state if isinstance(state, StreamState) else None
        return settings_of(part, stream, self.network_state.trackers)

    def is_storing(self, chain: str) -> bool:
        """Tell whether changes of a chain are on their way to the disk."""
        kept = self._chains.get(chain)
        return kept is not None and bool(kept.line)

    def chain_of(self, token: int) -> str:
        """Return whose change a token stands for."""
        return self._storing[token]

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        of_one = max(map(len, self._watched.values()), default=0)
        return {
            "chains": (len(self._chains), MAX_CHAINS),
            "changes in line": (self._in_line, MAX_IN_LINE),
            "copies in line": (self._copies_in_line, MAX_COPIES_IN_LINE),
            "chains a node watches": (of_one, MAX_CHAINS),
            "watches": (self._watches, MAX_WATCHES),
        }

    # --- Messages -------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take a question; RemoteError costs the sender its link."""
        if type(message) is ReadChain:
            return [Send(sender, self._read(sender, message))]
        if type(message) is ListChains:
            return [Send(sender, self._list(message))]
        if type(message) is WriteChange:
            return self._write(sender, message, now)
        raise RemoteError("not-for-keepers", type(message).__name__)

    def _read(self, sender: NodeId, message: ReadChain) -> ChainPage:
        chain, after = message.chain, message.after
        if not is_chain_name(chain):
            raise RemoteError("chain-name", chain[:64])
        self._watch(sender, chain)
        kept = self._chains.get(chain) or _Kept(new_chain(chain, self.network_state.network))
        state = kept.state
        page = pack_page(kept.changes, after)
        return ChainPage(message.ticket, chain, after, state.height, state.head, page)

    def _list(self, message: ListChains) -> ChainList:
        # Names are ASCII, so no name of a stream lies beyond this end of the prefix's range.
        low = max(
            bisect_left(self._streams, message.prefix), bisect_right(self._streams, message.after)
        )
        high = max(low, bisect_left(self._streams, message.prefix + "\x7f"))
        return ChainList(
            message.ticket,
            tuple(self._streams[low : min(high, low + MAX_LISTED)]),
            high - low > MAX_LISTED,
        )

    def _write(self, sender: NodeId, message: WriteChange, now: float) -> list[Effect]:
        ticket, encoded = message.ticket, message.change
        change = decode_change(encoded)
        if not self.is_writer:
            return [
                _refuse(sender, ticket, "not-the-writer: send it to the network's first tracker")
            ]
        if not is_chain_name(change.chain):
            raise RemoteError("chain-name", change.chain[:64])
        check_signature(encoded, change, self.network_state.network, self._verify)
        if abs(change.at_ms - now * 1000) > MAX_SKEW_MS:
            return [_refuse(sender, ticket, "clock: set yours right; it is minutes off")]
        if self._in_line >= MAX_IN_LINE:
            return [_refuse(sender, ticket, "busy: try again in a moment")]
        if change.chain not in self._chains and len(self._chains) >= MAX_CHAINS:
            return [_refuse(sender, ticket, f"full: this keeper has {MAX_CHAINS} chains")]
        self._in_line += 1
        return self._stand_in_line(change.chain, _InLine(encoded, sender, ticket))

    def copy(self, chain: str, change: bytes) -> list[Effect]:
        """Add a change that was read from the writer, and checked by the reader."""
        assert self._copies_in_line < MAX_COPIES_IN_LINE
        self._copies_in_line += 1
        return self._stand_in_line(chain, _InLine(change))

    # --- Writing --------------------------------------------------------------------------

    def stored(self, event: Stored) -> list[Effect]:
        """Take note that a change is on the disk, or that it could not be written."""
        kept = self._chains[self._storing.pop(event.token)]
        done = self._leave_line(kept)
        effects: list[Effect] = []
        if not event.problem:
            self._add(kept, done.change)
            height = kept.state.height
            if done.sender != _COPY_MARK:
                effects.append(Send(done.sender, Written(done.ticket, height)))
            changed = ChainChanged(kept.state.chain, height)
            effects += [Send(watcher, changed) for watcher in self._who_is_told(kept.state)]
        else:
            effects.append(Notice(None, "disk", event.problem))
            if done.sender != _COPY_MARK:
                effects.append(_refuse(done.sender, done.ticket, f"disk: {event.problem}"))
        return effects + self._store_next(kept)

    def _stand_in_line(self, chain: str, entry: _InLine) -> list[Effect]:
        kept = self._kept(chain)
        kept.line.append(entry)
        return self._store_next(kept) if len(kept.line) == 1 else []

    def _kept(self, chain: str) -> _Kept:
        kept = self._chains.get(chain)
        if kept is None:
            kept = self._chains[chain] = _Kept(new_chain(chain, self.network_state.network))
        return kept

    def _store_next(self, kept: _Kept) -> list[Effect]:
        """Hand the next change in line to the disk, once it has been found right."""
        effects: list[Effect] = []
        state = kept.state
        while kept.line:
            entry = kept.line[0]
            try:
                _check(state, entry.change)
            except RemoteError as error:
                self._leave_line(kept)
                if entry.sender != _COPY_MARK:
                    effects.append(self._refuse_change(kept, entry, error))
                continue
            self._token += 1
            self._storing[self._token] = state.chain
            return [*effects, Store(self._token, state.chain, state.height + 1, entry.change)]
        if not kept.changes and state.chain != NETWORK:
            del self._chains[state.chain]
        return effects

    def _refuse_change(self, kept: _Kept, entry: _InLine, error: RemoteError) -> Effect:
        height = decode_change(entry.change).height
        if error.reason == STALE and kept.changes[height - 1 : height] == [entry.change]:
            # It is asked for a second time, since the first answer was lost on the way.
            return Send(entry.sender, Written(entry.ticket, height))
        return _refuse(entry.sender, entry.ticket, str(error))

    def _leave_line(self, kept: _Kept) -> _InLine:
        entry = kept.line.popleft()
        if entry.sender == _COPY_MARK:
            self._copies_in_line -= 1
        else:
            self._in_line -= 1
        return entry

    def _add(self, kept: _Kept, encoded: bytes) -> None:
        """Add a change that was found right when it was handed to the disk."""
        state = kept.state
        existed = isinstance(state, StreamState) and state.created is not None
        state.apply(encoded, _checked_already)
        kept.changes.append(encoded)
        if isinstance(state, StreamState) and existed is not (state.created is not None):
            if existed:
                del self._streams[bisect_left(self._streams, state.chain)]
            else:
                insort(self._streams, state.chain)

    def _load(self, changes: Iterable[tuple[str, int, bytes]]) -> None:
        for chain, height, encoded in changes:
            try:
                if not is_chain_name(chain):
                    raise RemoteError("chain-name", chain)
                kept = self._kept(chain)
                if height != kept.state.height + 1:
                    raise RemoteError("height", f"{kept.state.height + 1} is missing")
                self._add(kept, encoded)
            except RemoteError as error:
                raise LocalError(
                    f"the stored registry is damaged, or is another network's: change {height} of "
                    f"{chain} does not hold ({error}): restore the file from a copy, or move it "
                    "away and let the tracker copy the registry from another one"
                ) from error

    # --- Who is told ----------------------------------------------------------------------

    def link(self, peer: NodeId, up: bool) -> None:
        """Forget what a node watches when its link ends."""
        if up:
            return
        for chain in self._watched.pop(peer, {}):
            self._unwatch(peer, chain)

    def _watch(self, node: NodeId, chain: str) -> None:
        of_node = self._watched.setdefault(node, {})
        if chain in of_node or self._watches >= MAX_WATCHES:
            return
        of_node[chain] = None
        self._watchers.setdefault(chain, {})[node] = None
        self._watches += 1
        if len(of_node) > self._most_watched(node):
            oldest = next(iter(of_node))
            del of_node[oldest]
            self._unwatch(node, oldest)

    def _unwatch(self, node: NodeId, chain: str) -> None:
        watchers = self._watchers[chain]
        del watchers[node]
        self._watches -= 1
        if not watchers:
            del self._watchers[chain]

    def _who_is_told(self, state: ChainState) -> Iterable[NodeId]:
        """A tracker that copies from us hears of new chains: it could not ask for them by name."""
        watchers = self._watchers.get(state.chain, {})
        if state.height > 1:
            return watchers
        copying = [node for node in self._watchers.get(NETWORK, ()) if self._is_tracker(node)]
        return watchers | dict.fromkeys(copying)

    def _most_watched(self, node: NodeId) -> int:
        """A tracker that copies from us is told of every chain."""
        return MAX_CHAINS if self._is_tracker(node) else MAX_WATCHED

    def _is_tracker(self, node: NodeId) -> bool:
        return any(entry.node == node for entry in self.network_state.trackers)


def _check(state: ChainState, encoded: bytes) -> None:
    """Hold a change against its chain; its signature was checked when it came."""
    if isinstance(state, NetworkState) and state.genesis is None:
        state.copy().begin(encoded)
    else:
        state.check(decode_change(encoded))


def _checked_already(_author: NodeId, _digest: bytes, _signature: bytes) -> bool:
    return True


def _refuse(sender: NodeId, ticket: int, problem: str) -> Effect:
    return Send(sender, Written(ticket, 0, problem[:MAX_PROBLEM]))
