"""A simulated network that stores its streams: storage nodes with logs, readers in order."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Close, Draft, Machine, Open, Subscribe
from anabranch.core.messages.storage import Selection
from anabranch.core.peer import Peer
from anabranch.core.reader import Reader
from anabranch.core.receipts import Receipts
from anabranch.core.storage import Storage, UserOf
from anabranch.overlays import OVERLAYS
from anabranch.sim.byzantine import BYZANTINE
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import SimNode
from anabranch.sim.simulator import Simulator
from anabranch.sim.static_registry import StaticRegistry

NETWORK = b"simulated network..............."


class StoredCluster(Cluster):
    """Peers that read in order and ask for receipts, and storage nodes that keep all parts."""

    def __init__(
        self,
        sim: Simulator,
        seed: int | str,
        nodes: int,
        parts: int = 1,
        trackers: int = 1,
        overlay: str = "random-regular",
        degree: int = 4,
        real_keys: bool = False,
        disguises: Mapping[int, str] = MappingProxyType({}),
        storage: int = 3,
        copies: int = 0,  # that publishers ask for
    ) -> None:
        self._storing = storage
        self._copies = copies
        self._ticket = 0
        self.logs: dict[NodeId, Storage] = {}  # of each storage node's present life
        self.reading: dict[int, tuple[NodeId, StreamPart]] = {}  # who reads under a ticket
        super().__init__(sim, seed, nodes, parts, trackers, overlay, degree, real_keys, disguises)
        for index, node in enumerate(self._keepers):
            place = nodes + trackers + index
            self.storage.append(sim.add(node, place, self._storage(node)))
        for kept in self.storage:
            self._attend(kept)

    def _prepare(self, nodes: int) -> None:
        self._settings = msgspec.structs.replace(self._settings, is_stored=True)
        self._keepers = [self._signer(f"storage {i}").node for i in range(self._storing)]
        self.registry = StaticRegistry([part.stream for part in self.parts], self._keepers)

    def members(self, part: StreamPart) -> list[SimNode]:
        """Return all who have a place in a part: storage nodes, too."""
        return [*super().members(part), *self.storage]

    # --- What nodes do --------------------------------------------------------------------

    def subscribe(self, node: SimNode, part: StreamPart) -> None:
        """Let a node want a part's messages, in order."""
        self.sim.tell(node, Subscribe(part, plain=False))
        self.open(node, part)

    @property
    def next_ticket(self) -> int:
        """The ticket of whoever reads next."""
        return self._ticket + 1

    def open(
        self, node: SimNode, part: StreamPart, history: Selection | None = None, live: bool = True
    ) -> int:
        """Let a node read a part; return its ticket."""
        self._ticket += 1
        if node.alive:
            self.reading[self._ticket] = (node.id, part)
            self.sim.tell(node, Open(self._ticket, part, history, live))
        return self._ticket

    def unsubscribe(self, node: SimNode, part: StreamPart) -> None:
        """Let it want them no more, nor publish."""
        for ticket in [t for t, who in self.reading.items() if who == (node.id, part)]:
            del self.reading[ticket]
            self.sim.tell(node, Close(ticket))
        super().unsubscribe(node, part)

    def offer(self, node: SimNode, part: StreamPart, drafts: Sequence[Draft]) -> None:
        """Let a node publish these drafts together, and ask for receipts."""
        wanted = [msgspec.structs.replace(draft, copies=self._copies) for draft in drafts]
        super().offer(node, part, wanted)

    def restart(self, node: SimNode) -> None:
        """Start a crashed node again; a storage node has what is on its disk."""
        if node in self.storage:
            self.sim.restart(node, self._storage(node.id))
            self._attend(node)
            return
        for ticket in [t for t, who in self.reading.items() if who[0] == node.id]:
            del self.reading[ticket]
        super().restart(node)

    def primaries(self) -> list[SimNode]:
        """Return the storage nodes that are primaries now, as they see it."""
        return [
            node
            for node in self.storage
            if node.alive and any(self.is_primary(node, part) for part in self.parts)
        ]

    def is_primary(self, node: SimNode, part: StreamPart) -> bool:
        """Tell whether a storage node takes itself for the primary of a part."""
        status = self.logs[node.id].status(part)
        return status is not None and status.primary == node.id

    # --- Machines -------------------------------------------------------------------------

    def _attend(self, node: SimNode) -> None:
        """Let a storage node be in the overlays of what it keeps."""
        for part in self.parts:
            self.sim.tell(node, Subscribe(part, reads=False, plain=False))

    def _peer(self, node: NodeId) -> Machine:
        rng, verify = self._rng(node), self._verify_for(node)
        peer = Peer(
            self._signers[node],
            verify,
            self._directory,
            OVERLAYS,
            rng,
            rng.randbytes,
            reader=partial(Reader, self.registry, verify, rng),
            receipts=Receipts(NETWORK, verify, self.registry),
        )
        kind = self.disguised.get(node)
        return BYZANTINE[kind](peer, rng, self.disguised) if kind else peer

    def _storage(self, node: NodeId) -> Machine:
        rng, signer, verify = self._rng(node), self._signers[node], self._verify_for(node)
        known = self.sim.nodes.get(node)
        states = known.disk.logs.states() if known is not None else []

        def make(user_of: UserOf) -> Storage:
            self.logs[node] = Storage(signer, NETWORK, verify, self.registry, rng, states, user_of)
            return self.logs[node]

        return Peer(
            signer,
            verify,
            self._directory,
            OVERLAYS,
            rng,
            rng.randbytes,
            services=[self.registry],
            storage=make,
        )
