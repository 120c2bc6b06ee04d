"""A simulated network with a registry: users, trackers with disks, streams, permissions.

Each node acts for a user. The first node acts for the owner of the network and of its streams;
so does the third, as somebody does who runs two. The second acts for one who has all rights.
"""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from anabranch.core.changes import (
    ALL_RIGHTS,
    MAX_ACTIONS,
    Action,
    CreateStream,
    Genesis,
    Right,
    SetPermission,
    SetTrackers,
    TrackerEntry,
    encode_genesis,
    network_name,
)
from anabranch.core.history import History, make_change
from anabranch.core.identity import Curve, KnownKeys, Signer
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.machine import Draft, Follow, Machine
from anabranch.core.mandate import introduce
from anabranch.core.messages.registry import NETWORK
from anabranch.core.peer import Peer
from anabranch.core.registry import StreamState
from anabranch.core.registry_reader import RegistryReader
from anabranch.core.tracker_node import TrackerNode
from anabranch.overlays import OVERLAYS, TOPOLOGIES
from anabranch.sim.applications import Applications
from anabranch.sim.byzantine import BYZANTINE
from anabranch.sim.cluster import Cluster
from anabranch.sim.disks import Row
from anabranch.sim.faithless import FAITHLESS, Indulgent, Means, Sight
from anabranch.sim.lying_trackers import HONEST_FOR_S, LYING, Lying
from anabranch.sim.network import SimNode
from anabranch.sim.simulator import START_AT, Simulator

OWNERS = (0, 2)  # the nodes that act for the owner, if there are so many
SECOND = 1  # the node whose user has all rights
BOTH = Right.PUBLISH | Right.SUBSCRIBE


class TrustedCluster(Cluster):
    """Peers that act for users, trackers that keep the registry, streams with permissions."""

    def __init__(
        self,
        sim: Simulator,
        seed: int | str,
        nodes: int,
        parts: int = 1,
        trackers: int = 2,
        overlay: str = "random-regular",
        degree: int = 4,
        real_keys: bool = False,
        disguises: Mapping[int, str] = MappingProxyType({}),
        private: int = 1,  # so many of the parts may be read by those only who were told so
        liars: Mapping[int, str] = MappingProxyType({}),  # tracker: how it misbehaves
    ) -> None:
        self.users: dict[NodeId, Signer] = {}  # by the node that acts for them
        self.registries: dict[NodeId, RegistryReader] = {}  # of each peer's present life
        self.liars: dict[NodeId, str] = {}
        self.applications = Applications(sim, self._exists)
        self._private = private
        self._liars = liars
        self._disguises = disguises
        self._accomplices: list[NodeId] = []  # the nodes that misbehave
        self._seen: dict[Sight, None] = {}  # keys, by faithless nodes
        self._lie_since: dict[NodeId, float] = {}
        self._rows: dict[NodeId, list[Row]] = {}
        self._trust_rng = random.Random(f"{seed}/trust")
        sim.application = self.applications
        super().__init__(sim, seed, nodes, parts, trackers, overlay, degree, real_keys, disguises)
        for tracker in self.trackers:
            tracker.disk.rows += self._rows[tracker.id]
        for node in self.peers:
            sim.tell(node, Follow(NETWORK))

    @property
    def streams(self) -> list[str]:
        """The names of all streams there are."""
        return [part.stream for part in self.parts]

    @property
    def honest_trackers(self) -> list[SimNode]:
        """The trackers that keep to the protocol."""
        return [node for node in self.trackers if node.id not in self.liars]

    def user(self, node: SimNode) -> NodeId:
        """Return for whom a node acts."""
        return self.users[node.id].node

    def view(self, node: SimNode, stream: str) -> StreamState | None:
        """Return what a node's registry knows of a stream."""
        return self.registries[node.id].stream(stream)

    def history(self, node: SimNode, chain: str) -> History:
        """Return a chain as a node or a tracker has it."""
        if node.id in self.registries:
            return self.registries[node.id].history(chain)
        tracker = node.machine.inner if isinstance(node.machine, Lying) else node.machine
        assert isinstance(tracker, TrackerNode)
        return tracker.keeper.history(chain)

    def may(self, node: SimNode, part: StreamPart, right: Right) -> bool:
        """Tell whether a node's user has a right, as its own registry has it."""
        state = self.view(node, part.stream)
        return state is not None and state.may(self.user(node), right, self.sim.now)

    def placed_last(self, part: StreamPart) -> set[NodeId]:
        """Return the nodes that a tracker leaves with empty slots, since they had many disputes."""
        machines = [node.machine for node in self.trackers if node.alive]
        inner = [m.inner if isinstance(m, Lying) else m for m in machines]
        trackers = [m.tracker for m in inner if isinstance(m, TrackerNode)]
        return {node for tracker in trackers for node in tracker.placed_last(part)}

    def degree_of(self, part: StreamPart) -> int:
        """Return how many neighbours a member of a part should have, as the registry has it."""
        state = self.history(self.honest_trackers[0], part.stream).state
        assert isinstance(state, StreamState)
        return state.created.degree if state.created is not None else 0

    def members(self, part: StreamPart) -> list[SimNode]:
        """Return the honest peers whose users may publish to a part, or subscribe."""
        either = (Right.PUBLISH, Right.SUBSCRIBE)
        return [n for n in self.honest if any(self.may(n, part, right) for right in either)]

    def subscribe(self, node: SimNode, part: StreamPart) -> None:
        """Let a node want a part's messages."""
        self.applications.want(node, part)

    def unsubscribe(self, node: SimNode, part: StreamPart) -> None:
        """Let it want them no more, nor publish."""
        self.applications.want_no_more(node, part)
        super().unsubscribe(node, part)

    def offer(self, node: SimNode, part: StreamPart, drafts: Sequence[Draft]) -> None:
        """Let a node publish these drafts together, if its registry knows of the stream."""
        if node.alive and self._exists(node, part.stream):
            super().offer(node, part, drafts)
        else:
            self.sim.tell(node, Follow(part.stream))

    def restart(self, node: SimNode) -> None:
        """Start a crashed node or tracker again, with nothing but what is on its disk."""
        super().restart(node)
        if node.id in self.registries:
            self.applications.begin(node)
            self.sim.tell(node, Follow(NETWORK))

    # --- How it begins --------------------------------------------------------------------

    def _prepare(self, nodes: int) -> None:
        for index in range(nodes):
            node = self._signer(f"node {index}").node
            self.users[node] = self.owner if index in OWNERS else self._signer(f"user {index}")
            if index in self._disguises:
                self._accomplices.append(node)
        self.liars = {self._contacts[i].node: kind for i, kind in self._liars.items()}
        for node in self.liars:
            self._lie_since[node] = START_AT + self._trust_rng.uniform(*HONEST_FOR_S)
        genesis = encode_genesis(
            Genesis(1, "simulated", int(START_AT * 1000), self.owner.node, b"simulated genes.")
        )
        self.network = network_name(genesis)
        entries = tuple(TrackerEntry(c.node, f"sim://{i}") for i, c in enumerate(self._contacts))
        self._contacts = [entry.contact for entry in entries]
        network = History(NETWORK, self.network)
        network.add(genesis, self._verify())
        rows = self._written(network, SetTrackers(entries))
        # The other trackers have to copy the streams from the first.
        self._rows = {contact.node: list(rows) for contact in self._contacts}
        for index, part in enumerate(self.parts):
            actions = self._first_actions(index < self._private)
            self._rows[entries[0].node] += self._written(
                History(part.stream, self.network), *actions
            )

    def _first_actions(self, private: bool) -> list[Action]:
        """Create a stream and say who may do what."""
        rng = self._trust_rng
        public = Right(0) if private else rng.choice([Right.SUBSCRIBE, BOTH])
        settings = self._settings
        actions: list[Action] = [CreateStream(1, settings.overlay, settings.degree, "", public)]
        for index, user in enumerate(self.users.values()):
            rights = rng.choice([BOTH, BOTH, BOTH, BOTH, Right.SUBSCRIBE, Right(0)])
            if index == SECOND:
                rights = ALL_RIGHTS
            if rights and index not in OWNERS:
                actions.append(SetPermission(user.node, rights))
        return actions

    def _written(self, history: History, *actions: Action) -> list[Row]:
        """Add changes of the owner to a chain; return all of it as a disk holds it."""
        for first in range(0, len(actions), MAX_ACTIONS):
            some = actions[first : first + MAX_ACTIONS]
            history.add(make_change(self.owner, history, some, START_AT), self._verify())
        return [(history.chain, at, change) for at, change in enumerate(history.changes, 1)]

    def _exists(self, node: SimNode, stream: str) -> bool:
        state = self.view(node, stream)
        return state is not None and state.created is not None

    # --- Machines -------------------------------------------------------------------------

    def _peer(self, node: NodeId) -> Machine:
        rng, user = self._rng(node), self.users[node]
        curve: Curve = KnownKeys() if self._real_keys else self._cheap
        verify, entropy, known = curve.verify, rng.randbytes, self.sim.nodes.get(node)
        kept = list(known.disk.keys.values()) if known is not None else []
        found, *others = rng.sample(self._contacts, len(self._contacts))
        self.registries[node] = registry = RegistryReader(self.network, verify, found, rng, others)
        kind = self.disguised.get(node, "")
        permits = Indulgent(registry, user.node) if kind in FAITHLESS else registry
        peer = Peer(
            user,
            verify,
            registry.directory,
            OVERLAYS,
            rng,
            entropy,
            node=node,
            permits=permits,
            services=[registry],
            network=self.network,
            mandate=partial(introduce, user, self.network, node),
            keys=partial(KeyExchange, user, curve, entropy, self.network, permits, kept),
        )
        registry.by_neighbours.neighbours = peer.neighbours_in
        if kind in FAITHLESS:
            return FAITHLESS[kind](peer, rng, self._means(node))
        return BYZANTINE[kind](peer, rng, self.disguised) if kind else peer

    def _means(self, node: NodeId) -> Means:
        users = [user.node for user in self.users.values()]
        return Means(
            node, self.users[node], self.network, self.parts, list(self.users), users, self._seen
        )

    def _tracker(self, node: NodeId) -> Machine:
        known = self.sim.nodes.get(node)
        rows = self._rows[node] if known is None else known.disk.rows
        rng = self._rng(node)
        tracker = TrackerNode(node, self.network, self._verify(), rng, TOPOLOGIES, list(rows))
        kind = self.liars.get(node)
        if kind is None:
            return tracker
        return LYING[kind](tracker, rng, self._accomplices, self._lie_since[node])
