"""Who is told when a chain changes: nodes of the chains they read, trackers of every chain.

When there is no room, whoever has most makes it: so nobody can keep others from being told. What
a node asked for longest ago goes first, and before it what did not exist when it was asked for.
"""

from collections.abc import Iterable

import msgspec

from anabranch.core.changes import MAX_NETWORK_TRACKERS
from anabranch.core.ids import NodeId
from anabranch.core.machine import Sizes

MAX_WATCHED = 2_050  # chains that one node is told of: a node follows 2,000 (registry_reader.py)
MAX_ABSENT = 64  # of these, chains that did not exist when it asked for them
MAX_WATCHES = 1_000_000  # of all nodes together
MAX_STRANGERS = 64  # trackers that the network does not name and that want to be told of all


class _Watched(msgspec.Struct):
    """The chains that one node reads, the one it asked for last being the last."""

    existing: dict[str, None] = msgspec.field(default_factory=dict)
    absent: dict[str, None] = msgspec.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.existing) + len(self.absent)

    @property
    def oldest(self) -> str:
        """What is to go first."""
        return next(iter(self.absent or self.existing))


class Watches:
    """Chains by who reads them; a chain need not exist to be watched."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[NodeId, None]] = {}  # by chain
        self._watched: dict[NodeId, _Watched] = {}  # the same, by node
        self._with: dict[int, dict[NodeId, None]] = {}  # nodes by how many chains they watch
        self._most = 0  # no node watches more
        self._watches = 0
        self._of_all: dict[NodeId, bool] = {}  # who is told of everything: whether it is named

    def add(self, node: NodeId, chain: str, exists: bool) -> None:
        """Tell a node of a chain from now on; of too many, the one asked for first is left."""
        if node in self._of_all:
            return
        watched = self._watched.get(node, _Watched())
        if chain in watched.existing or chain in watched.absent:
            watched.existing.pop(chain, None)
            watched.absent.pop(chain, None)
        else:
            self._watchers.setdefault(chain, {})[node] = None
            self._watches += 1
            self._watched[node] = watched
            self._recount(node, len(watched), len(watched) + 1)
        (watched.existing if exists else watched.absent)[chain] = None
        if len(watched) > MAX_WATCHED or len(watched.absent) > MAX_ABSENT:
            self._drop_oldest(node)
        elif self._watches > MAX_WATCHES:
            while not self._with.get(self._most):
                self._most -= 1
            self._drop_oldest(next(iter(self._with[self._most])))

    def add_all(self, node: NodeId, is_named: bool) -> None:
        """Tell a tracker of every chain from now on, if there is room for it."""
        strangers = sum(not named for named in self._of_all.values())
        if not is_named and node not in self._of_all and strangers >= MAX_STRANGERS:
            return
        self._forget_chains(node)
        self._of_all[node] = is_named

    def forget(self, node: NodeId) -> None:
        """Tell a node nothing more."""
        self._of_all.pop(node, None)
        self._forget_chains(node)

    def of(self, chain: str) -> Iterable[NodeId]:
        """Return who is to be told of a chain."""
        return self._watchers.get(chain, {}) | dict.fromkeys(self._of_all)

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        nodes = self._watched.values()
        return {
            "chains a node watches": (max(map(len, nodes), default=0), MAX_WATCHED),
            "absent chains a node watches": (
                max((len(watched.absent) for watched in nodes), default=0),
                MAX_ABSENT,
            ),
            "watches": (self._watches, MAX_WATCHES),
            "followers": (len(self._of_all), MAX_STRANGERS + MAX_NETWORK_TRACKERS),
        }

    def _drop_oldest(self, node: NodeId) -> None:
        watched = self._watched[node]
        oldest, count = watched.oldest, len(watched)
        (watched.absent or watched.existing).pop(oldest)
        self._unwatch(node, oldest)
        self._recount(node, count, count - 1)
        if not watched:
            del self._watched[node]

    def _forget_chains(self, node: NodeId) -> None:
        watched = self._watched.pop(node, _Watched())
        self._recount(node, len(watched), 0)
        for chain in (*watched.existing, *watched.absent):
            self._unwatch(node, chain)

    def _recount(self, node: NodeId, before: int, after: int) -> None:
        """Keep nodes by how much they watch, so that whoever has most is found at once."""
        if before:
            del self._with[before][node]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with.setdefault(after, {})[node] = None
            self._most = max(self._most, after)

    def _unwatch(self, node: NodeId, chain: str) -> None:
        watchers = self._watchers[chain]
        del watchers[node]
        self._watches -= 1
        if not watchers:
            del self._watchers[chain]
