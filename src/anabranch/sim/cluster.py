"""A simulated network of peers and trackers: the machines, their keys, their streams."""

import hashlib
import random
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from anabranch.core.dial_checks import DialChecks
from anabranch.core.identity import CheapKeys, Identity, KnownKeys, Signer, Verify
from anabranch.core.ids import NodeId, StreamPart, show, stream_part
from anabranch.core.machine import Draft, Machine, Publish, Retire, Subscribe, Unsubscribe
from anabranch.core.messages import Contact
from anabranch.core.overlay import DEFAULT_DEGREE, PartSettings
from anabranch.core.peer import Peer
from anabranch.core.reachability import Reachability
from anabranch.core.tracker import Tracker
from anabranch.overlays import OVERLAYS, TOPOLOGIES
from anabranch.sim.byzantine import BYZANTINE, Byzantine
from anabranch.sim.network import SimNode
from anabranch.sim.simulator import Simulator


class Cluster:
    """Peers and trackers in one simulated world, and the streams they share."""

    def __init__(
        self,
        sim: Simulator,
        seed: int | str,
        nodes: int,
        parts: int = 1,
        trackers: int = 1,
        overlay: str = "random-regular",
        degree: int = DEFAULT_DEGREE,
        real_keys: bool = False,
        disguises: Mapping[int, str] = MappingProxyType({}),  # node: how it misbehaves
        undialable: Collection[int] | None = None,  # nodes; None: none, and trackers do not check
    ) -> None:
        self.sim = sim
        self.degree = degree
        self._seed = seed
        self._checks_dials = undialable is not None
        self._real_keys = real_keys
        self._cheap = CheapKeys()
        self._lives: dict[NodeId, int] = {}
        self._signers: dict[NodeId, Signer] = {}
        self.disguised: dict[NodeId, str] = {}
        self._contacts = [Contact(self._signer(f"tracker {i}").node) for i in range(trackers)]
        self._settings = PartSettings(overlay, degree, tuple(self._contacts))
        self.owner = self._signer("owner")
        self.parts = [stream_part(f"{show(self.owner.node)}/simulated/{i}") for i in range(parts)]
        self._prepare(nodes)
        self.trackers = [
            sim.add(contact.node, nodes + i, self._tracker(contact.node))
            for i, contact in enumerate(self._contacts)
        ]
        self.storage: list[SimNode] = []
        self.peers: list[SimNode] = []
        for index in range(nodes):
            node = self._signer(f"node {index}").node
            if index in disguises:
                self.disguised[node] = disguises[index]
            self.peers.append(sim.add(node, index, self._peer(node)))
            self.peers[-1].dialable = index not in (undialable or ())

    @property
    def honest(self) -> list[SimNode]:
        """The peers that keep to the protocol."""
        return [node for node in self.peers if node.id not in self.disguised]

    def degree_of(self, part: StreamPart) -> int:
        """Return how many neighbours a member of a part should have."""
        return self.degree

    def placed_last(self, part: StreamPart) -> set[NodeId]:
        """Return the nodes that a tracker leaves with empty slots, since they had many disputes."""
        machines = [node.machine for node in self.trackers if node.alive]
        trackers = [m for m in machines if isinstance(m, Tracker)]
        return {node for tracker in trackers for node in tracker.placed_last(part)}

    def members(self, part: StreamPart) -> list[SimNode]:
        """Return the honest peers that have a place in a part: here, all of them."""
        return self.honest

    def subscribe(self, node: SimNode, part: StreamPart) -> None:
        """Let a node want a part's messages."""
        self.sim.tell(node, Subscribe(part))

    def unsubscribe(self, node: SimNode, part: StreamPart) -> None:
        """Let it want them no more, nor publish."""
        self.sim.tell(node, Unsubscribe(part))
        self.sim.tell(node, Retire(part))

    def publish(self, node: SimNode, part: StreamPart, contents: Sequence[bytes]) -> None:
        """Let a node publish some messages together."""
        self.offer(node, part, [Draft(content) for content in contents])

    def offer(self, node: SimNode, part: StreamPart, drafts: Sequence[Draft]) -> None:
        """Let a node publish these drafts together."""
        self.sim.tell(node, Publish(part, drafts))

    def primaries(self) -> list[SimNode]:
        """Return the storage nodes that give offsets now: here, there are none."""
        return []

    def restart(self, node: SimNode) -> None:
        """Start a crashed node or tracker again, with an empty memory."""
        is_tracker = any(node is tracker for tracker in self.trackers)
        make = self._tracker if is_tracker else self._peer
        self.sim.restart(node, make(node.id))

    def neighbours(self, node: SimNode, part: StreamPart) -> tuple[NodeId, ...]:
        """Return a node's neighbours as it sees them."""
        machine = node.machine.inner if isinstance(node.machine, Byzantine) else node.machine
        assert isinstance(machine, Peer)
        return machine.neighbours(part)

    def _prepare(self, nodes: int) -> None:
        """Do what must be done before the first machine is made."""

    def snapshot(self) -> None:
        """Record everybody's neighbours."""
        for part in self.parts:
            for node in self.peers:
                if node.alive:
                    self.sim.snapshot(node, part, self.neighbours(node, part))

    def _signer(self, name: str) -> Signer:
        secret = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        signer = Identity(secret) if self._real_keys else self._cheap.identity(secret)
        self._signers[signer.node] = signer
        return signer

    def _verify(self) -> Verify:
        return KnownKeys().verify if self._real_keys else self._cheap.verify

    def _verify_for(self, node: NodeId) -> Verify:
        """Return what a node verifies signatures with, shown to the observer of a close watch."""
        verify, sim = self._verify(), self.sim
        if not sim.watches_closely:
            return verify

        def verify_and_show(publisher: NodeId, digest: bytes, signature: bytes) -> bool:
            if sim.observer is not None:
                sim.observer.verified(node, publisher, digest, signature)
            return verify(publisher, digest, signature)

        return verify_and_show

    def _rng(self, node: NodeId) -> random.Random:
        """Every life of a node has randomness of its own."""
        self._lives[node] = life = self._lives.get(node, 0) + 1
        return random.Random(f"{self._seed}/{node.hex()}/{life}")

    def _directory(self, part: StreamPart) -> PartSettings | None:
        return self._settings if part in self.parts else None

    def _peer(self, node: NodeId) -> Machine:
        rng = self._rng(node)
        address, reachability = "", None
        if self._checks_dials:
            address = f"sim://{node.hex()}:1"
            trackers = [contact.node for contact in self._contacts]
            reachability = Reachability(address, is_given=True, trackers=lambda: trackers)
        peer = Peer(
            self._signers[node],
            self._verify_for(node),
            self._directory,
            OVERLAYS,
            rng,
            rng.randbytes,
            address,
            reachability=reachability,
        )
        kind = self.disguised.get(node)
        return BYZANTINE[kind](peer, rng, self.disguised) if kind else peer

    def _tracker(self, node: NodeId) -> Machine:
        checks = DialChecks() if self._checks_dials else None
        return Tracker(node, self._directory, self._rng(node), TOPOLOGIES, checks=checks)
