"""How much anybody may add to the registry: changes of one author, streams of one owner, bytes.

Anybody can make a key, and every tracker keeps what is written for ever. These bounds hold for
those who ask for a change. What another tracker has written is only counted and never refused, or
the trackers' registries would differ for good.

To take away what somebody may do must be possible in a registry that is full, too. It cannot go
on without end: what is taken away was given before, and counted then.
"""

from collections import OrderedDict

from anabranch.core.changes import Change, DeleteStream, SetPermission, decode_change
from anabranch.core.errors import RemoteError
from anabranch.core.heads import Heads
from anabranch.core.history import History
from anabranch.core.ids import NodeId
from anabranch.core.machine import Sizes
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry import ChainState, StreamState

WRITES_PER_S = 10.0  # changes of one author, or that one link brings,
WRITES_AT_ONCE = 200.0  # and at once
MAX_AUTHORS = 4_096  # who wrote last; one that has been quiet for 20 s has all its allowance again
MAX_STREAMS_OF_OWNER = 1_000  # those that were deleted are counted
MAX_REGISTRY_BYTES = 1 << 30  # beyond that only the network's owner adds anything


class Allowance:
    """What is used up and grows again: so much at once, so much a second."""

    def __init__(self, at_once: float, per_s: float, now: float) -> None:
        self._most = self._left = at_once
        self._per_s = per_s
        self._at = now

    def spend(self, now: float) -> bool:
        """Use one; False if there is none."""
        earned = max(0.0, now - self._at) * self._per_s
        self._left = min(self._most, self._left + earned)
        self._at = max(self._at, now)
        if self._left < 1:
            return False
        self._left -= 1
        return True


def allow_writes(now: float) -> Allowance:
    """Return how many changes somebody may ask for."""
    return Allowance(WRITES_AT_ONCE, WRITES_PER_S, now)


class Quotas:
    """What has been added, and by whom of late."""

    def __init__(self, heads: Heads) -> None:
        """`heads` are those of the chains that have changes."""
        self._heads = heads
        self._bytes = 0  # of the chains of all streams
        self._authors: OrderedDict[NodeId, Allowance] = OrderedDict()  # who wrote last, last

    def count(self, chain: str, encoded: bytes) -> None:
        """Take note of a change that was added, whoever gave it to us."""
        if chain != NETWORK:
            self._bytes += len(encoded)

    def charge(self, history: History, encoded: bytes, owner: NodeId | None, now: float) -> None:
        """Raise RemoteError if an author asks for more than one may; `owner`: the network's.

        It is asked once the change has been found right: who sends somebody's old changes again
        uses up nothing of what that author may do.
        """
        change = decode_change(encoded)
        if not history.height:
            self._check_streams(change.chain)
        is_full = self._bytes + len(encoded) > MAX_REGISTRY_BYTES
        if is_full and change.author != owner and not _only_removes(history.state, change):
            raise RemoteError(
                "full", "this registry takes only what removes rights or streams: ask its owner"
            )
        if not self._allowance(change.author, now).spend(now):
            raise RemoteError(
                "busy", f"one key may make {WRITES_PER_S:.0f} changes a second: try again soon"
            )

    def sizes(self) -> Sizes:
        """Return what is bounded."""
        return {
            "registry bytes": (self._bytes, MAX_REGISTRY_BYTES),
            "authors": (len(self._authors), MAX_AUTHORS),
        }

    def _check_streams(self, chain: str) -> None:
        owner = chain.partition("/")[0] + "/"
        names = self._heads.after(owner, MAX_STREAMS_OF_OWNER)
        if len(names) == MAX_STREAMS_OF_OWNER and names[-1].startswith(owner):
            raise RemoteError(
                "full",
                f"{MAX_STREAMS_OF_OWNER} streams, with those deleted, are all that one key may "
                "have: use the name of a deleted one again, or another key",
            )

    def _allowance(self, author: NodeId, now: float) -> Allowance:
        if author not in self._authors:
            self._authors[author] = allow_writes(now)
            if len(self._authors) > MAX_AUTHORS:
                self._authors.popitem(last=False)
        self._authors.move_to_end(author)
        return self._authors[author]


def _only_removes(state: ChainState, change: Change) -> bool:
    """Tell whether a change does nothing but take away what is there."""
    return isinstance(state, StreamState) and all(
        type(action) is DeleteStream
        or (
            type(action) is SetPermission and not action.rights and action.node in state.permissions
        )
        for action in change.actions
    )
