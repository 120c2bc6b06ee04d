"""A tracker's side of the registry: all chains in memory, served in pages, written through a disk.

A change comes from its author, who asks for it to be written and must have known all that we know;
or from another tracker, which has written it already, and then it is added wherever it belongs. It
counts once it is on the disk: until Stored comes it is neither shown nor acknowledged, and whatever
else is to be added to its chain waits in line behind it. The disk holds the changes of a chain in
the order in which they came to us, so that each comes after those that it names.

Who reads a chain is told when it changes, for as long as its link stands.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from anabranch.core.changes import Change, decode_change, network_name, pack_page
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.heads import Heads
from anabranch.core.history import History, check_signature
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Disconnect, Effect, Notice, Send, Sizes, Store, Stored
from anabranch.core.messages import (
    ChainChanged,
    ChainHead,
    ChainList,
    ChainPage,
    Control,
    HeadList,
    ListChains,
    ListHeads,
    ReadChain,
    Written,
)
from anabranch.core.messages.registry import MAX_LISTED, MAX_PROBLEM, NETWORK
from anabranch.core.overlay import PartSettings
from anabranch.core.quotas import Quotas
from anabranch.core.registry import STALE, ChainState, NetworkState, StreamState, is_chain_name
from anabranch.core.rendezvous import settings_of
from anabranch.core.watches import Watches

MAX_CHAINS = 100_000  # that authors may begin; others' trackers may have some more
MAX_COPIED_CHAINS = 2 * MAX_CHAINS
MAX_IN_LINE = 1_024  # changes that authors have asked for and that wait for the disk
MAX_COPIES_IN_LINE = 32_768  # changes that other trackers gave us and that wait for the disk
MAX_SKEW_MS = 300_000  # how far the clock of a change's author may be from ours


class _InLine(msgspec.Struct):
    """A change that waits to be written."""

    change: bytes
    sender: NodeId
    ticket: int | None = None  # None: a tracker gave it to us, and wants no answer
    asked_at: float = 0.0


class _Kept(msgspec.Struct):
    """A chain, and what is to be added to it."""

    history: History
    line: deque[_InLine] = msgspec.field(default_factory=deque)  # the first is being stored


class RegistryKeeper:
    """Keeps the chains of a network."""

    def __init__(
        self, network: bytes, verify: Verify, changes: Iterable[tuple[str, int, bytes]] = ()
    ) -> None:
        """`changes` come from the disk, those of a chain in the order in which they came."""
        self.network = network
        self._verify = verify
        self._chains = {NETWORK: _Kept(History(NETWORK, network))}
        self._heads = Heads()  # of the chains that have changes
        self._quotas = Quotas(self._heads)
        self._existing: list[str] = []  # streams, sorted; but for those that changed since
        self._changed: dict[str, None] = {}  # whose state nobody has asked for yet
        self._storing: dict[int, str] = {}  # the chain by the token
        self._token = 0
        self._in_line = 0
        self._copies_in_line = 0
        self._watches = Watches()
        self._load(changes)

    # --- What others may ask --------------------------------------------------------------

    @property
    def network_state(self) -> NetworkState:
        """What the network's own chain says."""
        state = self._chains[NETWORK].history.state
        assert isinstance(state, NetworkState)
        return state

    @property
    def has_room(self) -> bool:
        """Whether more changes may be copied now."""
        return self._copies_in_line < MAX_IN_LINE

    @property
    def digest(self) -> bytes:
        """A hash of all chains and their heads."""
        return self._heads.digest

    def history(self, chain: str) -> History:
        """Return a chain, to look at and not to change; one that we do not have is empty."""
        kept = self._chains.get(chain)
        return kept.history if kept is not None else History(chain, self.network)

    def state(self, chain: str) -> ChainState | None:
        """Return what follows from a chain of which we have at least one change."""
        kept = self._chains.get(chain)
        return kept.history.state if kept is not None and kept.history.height else None

    def chains(self) -> list[str]:
        """Return the names of all chains that have changes, sorted."""
        return self._heads.names()

    def streams(self) -> Sequence[str]:
        """Return the names of the streams that exist, sorted; to look at, not to change."""
        names = self._existing
        for chain in self._changed:
            state, at = self.history(chain).state, bisect_left(names, chain)
            exists = isinstance(state, StreamState) and state.created is not None
            is_listed = names[at : at + 1] == [chain]
            if exists and not is_listed:
                names.insert(at, chain)
            elif is_listed and not exists:
                del names[at]
        self._changed.clear()
        return names

    def directory(self, part: StreamPart) -> PartSettings | None:
        """Return the settings of a stream part."""
        state = self.state(part.stream)
        stream = state if isinstance(state, StreamState) else None
        return settings_of(part, stream, self.network_state.trackers)

    def is_storing(self, chain: str) -> bool:
        """Tell whether changes of a chain are on their way to the disk."""
        kept = self._chains.get(chain)
        return kept is not None and bool(kept.line)

    def is_behind(self, encoded: bytes) -> bool:
        """Tell whether the author of a change knew changes that we do not have."""
        history = self.history(decode_change(encoded).chain)
        try:
            history.examine(encoded, _checked_already)
        except RemoteError as error:
            return error.reason == "orphan"
        return False

    def fits(self, encoded: bytes) -> bool:
        """Tell whether a change that we do not have would be written if we were asked to."""
        history = self.history(decode_change(encoded).chain)
        try:
            _examine(history, encoded)
        except RemoteError:
            return False
        return not history.has(encoded)

    def chain_of(self, token: int) -> str:
        """Return whose change a token stands for."""
        return self._storing[token]

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {
            "chains": (len(self._chains), MAX_COPIED_CHAINS),
            "changes in line": (self._in_line, MAX_IN_LINE),
            "copies in line": (self._copies_in_line, MAX_COPIES_IN_LINE),
            **self._quotas.sizes(),
            **self._watches.sizes(),
        }

    # --- Questions ------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: Control) -> list[Effect]:
        """Answer a question; RemoteError costs the sender its link."""
        if type(message) is ReadChain:
            return [Send(sender, self._read(sender, message))]
        if type(message) is ListChains:
            return [Send(sender, self._list(message))]
        if type(message) is ListHeads:
            return [Send(sender, self._list_heads(sender, message))]
        raise RemoteError("not-for-keepers", type(message).__name__)

    def link(self, peer: NodeId, up: bool) -> None:
        """Forget what a node is to be told when its link ends."""
        if not up:
            self._watches.forget(peer)

    def _read(self, sender: NodeId, message: ReadChain) -> ChainPage:
        chain, after = message.chain, message.after
        if not is_chain_name(chain):
            raise RemoteError("chain-name", chain[:64])
        history = self.history(chain)
        self._watches.add(sender, chain, exists=history.height > 0)
        if after and history.head_at(after) != message.head:
            after = 0  # it has other changes than we have, or in another order
        page = pack_page(history.changes, after)
        return ChainPage(message.ticket, chain, after, history.height, history.head, page)

    def _list(self, message: ListChains) -> ChainList:
        # Names are ASCII, so no name of a stream lies beyond this end of the prefix's range.
        names = self.streams()
        low = max(bisect_left(names, message.prefix), bisect_right(names, message.after))
        high = max(low, bisect_left(names, message.prefix + "\x7f"))
        some = names[low : min(high, low + MAX_LISTED)]
        return ChainList(message.ticket, tuple(some), high - low > MAX_LISTED)

    def _list_heads(self, sender: NodeId, message: ListHeads) -> HeadList:
        self._watches.add_all(sender, self.is_tracker(sender))
        if message.digest == self.digest:
            return HeadList(message.ticket, same=True)
        names = self._heads.after(message.after, MAX_LISTED + 1)
        histories = [self._chains[name].history for name in names[:MAX_LISTED]]
        heads = tuple(ChainHead(h.chain, h.height, h.head) for h in histories)
        return HeadList(message.ticket, heads, len(names) > MAX_LISTED)

    def is_tracker(self, node: NodeId) -> bool:
        """Tell whether the network names a node as one of its trackers."""
        return any(entry.node == node for entry in self.network_state.trackers)

    # --- Changes to be added --------------------------------------------------------------

    def check(self, encoded: bytes) -> Change:
        """Read a change; RemoteError unless its author has signed it."""
        change = decode_change(encoded)
        if not is_chain_name(change.chain):
            raise RemoteError("chain-name", change.chain[:64])
        check_signature(encoded, change, self.network, self._verify)
        return change

    def check_copy(self, chain: str, encoded: bytes) -> None:
        """Raise RemoteError unless a change is signed and of this chain, or is the genesis."""
        is_genesis = chain == NETWORK and network_name(encoded) == self.network
        if not is_genesis and self.check(encoded).chain != chain:
            raise RemoteError("wrong-chain", chain)

    def write(self, sender: NodeId, ticket: int, encoded: bytes, now: float) -> list[Effect]:
        """Write a change for somebody; `check` has found it signed."""
        change = decode_change(encoded)
        now_ms, newest_ms = now * 1000, self.history(change.chain).at_ms
        # A chain whose newest change is dated in the future can be written nevertheless.
        if not now_ms - MAX_SKEW_MS <= change.at_ms <= max(now_ms + MAX_SKEW_MS, newest_ms):
            return [refuse(sender, ticket, "clock: set yours right; it is minutes off")]
        if self._in_line >= MAX_IN_LINE:
            return [refuse(sender, ticket, "busy: try again in a moment")]
        is_new = change.chain not in self._chains
        if is_new and len(self._chains) >= MAX_CHAINS and change.author != self.network_state.owner:
            return [refuse(sender, ticket, f"full: this keeper has {MAX_CHAINS} chains")]
        self._in_line += 1
        return self._stand_in_line(change.chain, _InLine(encoded, sender, ticket, now))

    def copy(self, origin: NodeId, chain: str, encoded: bytes) -> list[Effect]:
        """Add a change that a tracker gave us; `check_copy` has found it signed."""
        if chain not in self._chains and len(self._chains) >= MAX_COPIED_CHAINS:
            return [Notice(None, "registry-full", f"{chain} is one chain too many")]
        assert self._copies_in_line < MAX_COPIES_IN_LINE
        self._copies_in_line += 1
        return self._stand_in_line(chain, _InLine(encoded, origin))

    def _stand_in_line(self, chain: str, entry: _InLine) -> list[Effect]:
        kept = self._kept(chain)
        kept.line.append(entry)
        return self._store_next(kept) if len(kept.line) == 1 else []

    def _kept(self, chain: str) -> _Kept:
        kept = self._chains.get(chain)
        if kept is None:
            kept = self._chains[chain] = _Kept(History(chain, self.network))
        return kept

    # --- The disk -------------------------------------------------------------------------

    def stored(self, event: Stored) -> list[Effect]:
        """Take note that a change is on the disk, or that it could not be written."""
        kept = self._chains[self._storing.pop(event.token)]
        done = self._leave_line(kept)
        effects: list[Effect] = []
        if not event.problem:
            self._add(kept.history, done.change)
            chain, height, head = kept.history.chain, kept.history.height, kept.history.head
            self._heads.set(chain, head)
            if done.ticket is not None:
                effects.append(Send(done.sender, Written(done.ticket, height)))
            changed, told = ChainChanged(chain, height, head), self._watches.of(chain)
            gave = done.sender if done.ticket is None else None  # it need not hear of it
            effects += [Send(watcher, changed) for watcher in told if watcher != gave]
        else:
            effects.append(Notice(None, "disk", event.problem))
            if done.ticket is not None:
                effects.append(refuse(done.sender, done.ticket, f"disk: {event.problem}"))
            # What came from other trackers may name this one, and can be had of them again.
            self._drop_copies(kept, lambda entry: True)
        return effects + self._store_next(kept)

    def _store_next(self, kept: _Kept) -> list[Effect]:
        """Hand the next change in line to the disk, once it has been found right."""
        effects: list[Effect] = []
        history = kept.history
        while kept.line:
            entry = kept.line[0]
            try:
                if not history.has(entry.change):
                    if entry.ticket is not None:
                        _examine(history, entry.change)
                        self._quotas.charge(
                            history, entry.change, self.network_state.owner, entry.asked_at
                        )
                    else:
                        history.examine(entry.change, _checked_already)
                    self._token += 1
                    self._storing[self._token] = history.chain
                    store = Store(self._token, history.chain, history.height + 1, entry.change)
                    return [*effects, store]
                self._leave_line(kept)
                if entry.ticket is not None:
                    # It is asked for a second time, since the first answer was lost on the way.
                    effects.append(Send(entry.sender, Written(entry.ticket, history.height)))
            except RemoteError as error:
                self._leave_line(kept)
                effects += self._turn_down(kept, entry, error)
        if not history.height and history.chain != NETWORK:
            del self._chains[history.chain]
        return effects

    def _turn_down(self, kept: _Kept, entry: _InLine, error: RemoteError) -> list[Effect]:
        """Refuse a change to its author; a tracker that gave us a wrong one loses its link."""
        sender = entry.sender
        if entry.ticket is not None:
            return [refuse(sender, entry.ticket, str(error))]
        self._drop_copies(kept, lambda other: other.sender == sender)
        if error.reason == "full":
            return [Notice(None, "registry-full", str(error))]
        return [
            Notice(None, "fault", f"{error.reason} from {sender.hex()}"),
            Disconnect(sender, error.reason),
        ]

    def _drop_copies(self, kept: _Kept, which: Callable[[_InLine], bool]) -> None:
        """Let some of what other trackers gave us go; none of it is with the disk just now."""
        staying = [entry for entry in kept.line if entry.ticket is not None or not which(entry)]
        self._copies_in_line -= len(kept.line) - len(staying)
        kept.line = deque(staying)

    def _leave_line(self, kept: _Kept) -> _InLine:
        entry = kept.line.popleft()
        if entry.ticket is None:
            self._copies_in_line -= 1
        else:
            self._in_line -= 1
        return entry

    def _add(self, history: History, encoded: bytes) -> bool:
        """Add a change that was found right when it was handed to the disk."""
        is_new = history.add(encoded, _checked_already)
        if is_new:
            self._quotas.count(history.chain, encoded)
        self._changed[history.chain] = None
        return is_new

    def _load(self, changes: Iterable[tuple[str, int, bytes]]) -> None:
        for chain, sequence, encoded in changes:
            try:
                if not is_chain_name(chain):
                    raise RemoteError("chain-name", chain)
                history = self._kept(chain).history
                if sequence != history.height + 1:
                    raise RemoteError("sequence", f"{history.height + 1} is missing")
                if not self._add(history, encoded):
                    raise RemoteError("twice", "it is there already")
            except RemoteError as error:
                raise LocalError(
                    f"the stored registry is damaged, or is another network's: change {sequence} "
                    f"of {chain} does not hold ({error}): restore the file from a copy, or move it "
                    "away and let the tracker copy the registry from another one"
                ) from error
        for chain in self._changed:
            self._heads.set(chain, self._chains[chain].history.head)


def _examine(history: History, encoded: bytes) -> None:
    """Hold what an author asks for against its chain; its signature was checked when it came."""
    if not history.extends(encoded):
        raise RemoteError(STALE, "read the chain and try again")
    history.examine(encoded, _checked_already)


def _checked_already(_author: NodeId, _digest: bytes, _signature: bytes) -> bool:
    """Stand in for a check of signatures that was made before."""
    return True


def refuse(sender: NodeId, ticket: int, problem: str) -> Effect:
    """Say why a change is not written."""
    return Send(sender, Written(ticket, 0, problem[:MAX_PROBLEM]))
