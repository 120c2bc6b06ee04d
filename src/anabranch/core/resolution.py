"""What follows from changes of which some were made at the same time: revocation wins.

Two changes are concurrent if neither was made in the knowledge of the other, which happens when
two trackers that could not see each other both wrote. The state is a function of the set of
changes alone, so all who have the same changes agree, however they came by them:

- The changes are gone through in their canonical order: by depth, then by hash.
- A right that a change takes from somebody is not given to him by a concurrent one.
- A change whose author loses, concurrently, the right to make it is reduced to the rights it takes
  away; so is one of a stream that is deleted concurrently, and one that makes no sense after what
  came before it in the order. What is taken away therefore stays away, whoever else was at work:
  two who remove each other are both removed.
- Otherwise the later one in the order has the last word.

So somebody who was removed, and who has a tracker for an accomplice, can pretend to have acted
before his removal and take rights from others, never from the owner; he can give rights to nobody,
and delete nothing.
"""

from collections.abc import Sequence

import msgspec

from anabranch.core.changes import (
    ALL_RIGHTS,
    PUBLIC,
    Action,
    Change,
    CreateStream,
    DeleteStream,
    Right,
    SetPermission,
    hash_change,
)
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.registry import (
    NOTHING,
    ChainState,
    NetworkState,
    Permission,
    StreamState,
)


class Entry(msgspec.Struct, gc=False):
    """A change in its chain, and what it was when it was made."""

    index: int  # in the order in which changes came to us
    hash: bytes
    encoded: bytes
    change: Change | None  # None: the genesis record
    depth: int
    at_ms: int
    parents: tuple[int, ...]
    sets: dict[NodeId, tuple[int, int]]  # whose permission: the rights it gives, and takes
    needs: int = 0  # the rights its author, who is not the owner, needed for it
    of_everybody: int = 0  # those of them that he had only as everybody has them
    deletes: bool = False

    @property
    def removes_readers(self) -> bool:
        """Whether it takes the right to subscribe from anybody."""
        return self.deletes or any(taken & Right.SUBSCRIBE for _, taken in self.sets.values())

    @property
    def place(self) -> tuple[int, bytes]:
        """Return what the canonical order goes by."""
        return (self.depth, self.hash)


def weigh(
    base: ChainState, change: Change, encoded: bytes, index: int, parents: tuple[int, ...]
) -> tuple[Entry, ChainState]:
    """Hold a change against what its author knew: return its entry, and what it leads to."""
    after = base.copy()
    sets: dict[NodeId, tuple[int, int]] = {}
    needs = of_everybody = 0
    deletes = False
    for action in change.actions:
        after.allow(change.author, change.at_ms, action)
        if isinstance(after, StreamState) and change.author != after.owner:
            needed, own = after.needs(action), after.permissions.get(change.author, NOTHING)
            needs |= needed
            of_everybody |= needed & ~own.at(change.at_ms)
        if type(action) is SetPermission:
            assert isinstance(after, StreamState)
            given, taken = _given_and_taken(after, action, change.at_ms)
            before = sets.get(action.node, (0, 0))
            sets[action.node] = (before[0] & ~taken | given, before[1] & ~given | taken)
        if type(action) is CreateStream and action.public:
            sets[PUBLIC] = (action.public, 0)
        deletes = type(action) is DeleteStream or deletes
        after.act(action)
    entry = Entry(
        index,
        hash_change(encoded),
        encoded,
        change,
        change.depth,
        change.at_ms,
        parents,
        sets,
        needs,
        of_everybody,
        deletes,
    )
    if isinstance(after, StreamState):
        after.removals += entry.removes_readers
        after.changes += 1
    return entry, after


def _given_and_taken(state: StreamState, action: SetPermission, at_ms: int) -> tuple[int, int]:
    """Whoever takes anything wants no more to be there than he leaves: that is what he takes."""
    before = state.permissions.get(action.node, NOTHING).at(at_ms)
    rights = Permission(action.rights, action.expires_ms).at(at_ms)
    takes = not rights or before & ~rights
    return rights & ~before, int(ALL_RIGHTS) & ~rights if takes else 0


def resolve(empty: ChainState, entries: Sequence[Entry]) -> ChainState:
    """Return what follows from changes in their canonical order, parents before children."""
    state = empty
    rivals = find_rivals(entries)
    for at, entry in enumerate(entries):
        if entry.change is None:
            assert isinstance(state, NetworkState)
            state.begin(entry.encoded)
        else:
            state = _settled(state, entry, entry.change, rivals.get(at))
    if isinstance(state, StreamState):
        # Of two branches that meet, each may have let somebody read whom the other did not.
        state.removals = len(rivals) + sum(entry.removes_readers for entry in entries)
        state.changes = len(entries)
    return state


def _settled(
    state: ChainState, entry: Entry, change: Change, rivals: "Rivals | None"
) -> ChainState:
    """Let a change have its consequences, as far as those concurrent with it leave it any."""
    after = state.copy() if rivals or len(change.actions) > 1 else state
    try:
        if rivals is not None and rivals.disarm(entry):
            raise RemoteError("disarmed")
        for action in change.actions:
            after.allow(change.author, change.at_ms, action)
            if rivals is None or not isinstance(after, StreamState):
                after.act(action)
            else:
                _act_beside(after, action, entry, rivals)
    except RemoteError:
        return _reduced(state, entry, rivals is None or not rivals.rob(entry))
    return after


def _act_beside(state: StreamState, action: Action, entry: Entry, rivals: "Rivals") -> None:
    """Act where others acted at the same time: of what they did, what takes away stays."""
    if type(action) is CreateStream:
        state.act(action)
        held = state.permissions.get(PUBLIC, NOTHING)
        state.hold(PUBLIC, Permission(held.rights & ~rivals.taken_from(PUBLIC)))
    elif type(action) is SetPermission and rivals.speak_of(action.node):
        assert entry.change is not None
        given, taken = entry.sets[action.node]
        held = state.permissions.get(action.node, NOTHING)
        if not held.at(entry.change.at_ms):
            held = NOTHING
        ends = [at for at in (held.expires_ms, action.expires_ms) if at]
        rights = (held.rights | given & ~rivals.taken_from(action.node)) & ~taken
        state.hold(action.node, Permission(rights, min(ends, default=0)))
    else:
        state.act(action)


def _reduced(state: ChainState, entry: Entry, may_delete: bool) -> ChainState:
    """Take away what a change takes away, and no more."""
    if isinstance(state, StreamState):
        for node, (_, taken) in entry.sets.items():
            held = state.permissions.get(node, NOTHING)
            state.hold(node, Permission(held.rights & ~taken, held.expires_ms))
        if entry.deletes and may_delete and state.created is not None:
            state.act(DeleteStream())
    return state


# --- Who was at work at the same time -------------------------------------------------------


def find_rivals(entries: Sequence[Entry]) -> dict[int, "Rivals"]:
    """Return, for each place of the order where there are any, the concurrent entries.

    The order goes by depth. An entry that is alone at its depth is known to all deeper ones; one
    that also knows all before it has no rivals and parts them from those after it. So in a line
    nothing has to be compared, and elsewhere only what lies between two such entries.
    """
    rivals: dict[int, Rivals] = {}
    places: dict[int, int] = {}  # by index
    start, known = 0, list[int]()  # what each entry from `start` on knows, as bits from there
    for at, entry in enumerate(entries):
        mask = 0
        for parent in entry.parents:
            if (place := places[parent] - start) >= 0:
                mask |= known[place] | 1 << place
        places[entry.index] = at
        known.append(mask)
        is_last = at + 1 == len(entries)
        alone = not at or entries[at - 1].depth < entry.depth
        alone = alone and (is_last or entry.depth < entries[at + 1].depth)
        if is_last or (alone and mask == (1 << at - start) - 1):
            if len(known) > 1:
                rivals |= _compare(entries[start : at + 1], known, start)
            start, known = at + 1, []
    return rivals


def _compare(entries: Sequence[Entry], known: list[int], start: int) -> dict[int, "Rivals"]:
    """Return the rivals among entries of which none outside can be one."""
    places = {entry.index: at for at, entry in enumerate(entries)}
    knowers = [0] * len(entries)
    for at in reversed(range(len(entries))):
        for parent in entries[at].parents:
            if parent in places:
                knowers[places[parent]] |= knowers[at] | 1 << at
    everybody, index = (1 << len(entries)) - 1, _Index(entries)
    found: dict[int, Rivals] = {}
    for at in range(len(entries)):
        mask = everybody & ~(known[at] | knowers[at] | 1 << at)
        if mask:
            found[start + at] = Rivals(mask, index)
    for at, entry in enumerate(entries):
        rivals = found.get(start + at)
        if entry.deletes and (rivals is None or not rivals.rob(entry)):
            index.deleting |= 1 << at
    return found


class _Index:
    """What entries do to whom, as bits of those that do it: asking many costs as much as one."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.speaking: dict[NodeId, int] = {}
        self.taking: dict[tuple[NodeId, int], int] = {}  # from whom, and which right
        self.deleting = 0  # of those whose author keeps the right to
        for at, entry in enumerate(entries):
            for node, (_, taken) in entry.sets.items():
                self.speaking[node] = self.speaking.get(node, 0) | 1 << at
                for right in Right:
                    if taken & right:
                        self.taking[node, right] = self.taking.get((node, right), 0) | 1 << at


class Rivals:
    """The changes that are concurrent with one."""

    def __init__(self, mask: int, index: _Index) -> None:
        self._mask = mask
        self._index = index

    def speak_of(self, node: NodeId) -> bool:
        """Tell whether any of them sets the permission of a node."""
        return bool(self._mask & self._index.speaking.get(node, 0))

    def taken_from(self, node: NodeId) -> int:
        """Return the rights that they take from a node."""
        taking = self._index.taking
        return sum(right for right in Right if self._mask & taking.get((node, right), 0))

    def rob(self, entry: Entry) -> bool:
        """Tell whether they take from its author the right to make a change."""
        if entry.change is None or not entry.needs:
            return False
        taken = self.taken_from(entry.change.author) & entry.needs
        return bool(taken or self.taken_from(PUBLIC) & entry.of_everybody)

    def disarm(self, entry: Entry) -> bool:
        """Tell whether a change is to be reduced because of them."""
        is_deleted = not entry.deletes and bool(self._mask & self._index.deleting)
        return is_deleted or self.rob(entry)
