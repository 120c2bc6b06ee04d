"""A reader in whatever happens: its tables stay bounded, and in the end it knows all there is."""

import random

from anabranch.core.changes import CreateStream, Right, SetPermission, SetTrackers
from anabranch.core.errors import RemoteError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Follow, Request
from anabranch.core.messages import ChainChanged, ListChains, Written
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_sources import LEFT_S
from chains import ENTRIES, OWNER, SECOND, STREAM, Writer
from machines import NODES
from reading import Reading

CHAINS = (STREAM, SECOND)
NODES_OF = [entry.node for entry in ENTRIES]


class World:
    """Three trackers that part and find together again, and one reader."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.reading = Reading(seed=seed)
        self.reading.start(*ENTRIES)
        base = {chain: Writer(chain).add(CreateStream()) for chain in CHAINS}
        base[NETWORK] = self.reading.writers[NETWORK]
        for node in NODES_OF:
            self.reading.stories[node] = {chain: base[chain].fork() for chain in base}

    def step(self) -> None:
        """Let something happen."""
        rng, reading = self.rng, self.reading
        node, chain = rng.choice(NODES_OF), rng.choice(CHAINS)
        what = rng.randrange(12)
        if what == 0:
            reading.down(node)
        elif what <= 2:
            reading.up(node)
        elif what == 3:
            reading.deaf ^= {node}
        elif what <= 5:
            reading.wait(rng.choice((0.1, 3, 20, 400)))
        elif what == 6:
            self.write(node, chain)
        elif what == 7:
            self.replicate(node, rng.choice(NODES_OF))
        elif what == 8:
            reading.run(reading.tell(Follow(chain)))
        elif what == 9:
            reading.run(reading.reader.doubt(chain, reading.now))
        elif what == 10:
            reading.reader.forget(chain)
        else:
            self.disturb(node, chain)

    def write(self, node: bytes, chain: str) -> None:
        """Let a tracker take a change, and push it or not."""
        story = self.reading.stories[node]
        if self.rng.random() < 0.2:
            some = self.rng.sample(ENTRIES, self.rng.randint(1, 3))
            story[NETWORK].add(SetTrackers(tuple(some)))
        rights = self.rng.randint(0, 7)
        story[chain].add(SetPermission(self.rng.choice(NODES[5:8]), rights))
        if self.rng.random() < 0.5:
            history = story[chain].history
            self.hear(node, ChainChanged(chain, history.height, history.head))

    def replicate(self, node: bytes, other: bytes) -> None:
        """Let a tracker learn what another one has."""
        for chain, writer in self.reading.stories[node].items():
            writer.take(*self.reading.stories[other][chain].changes)

    def disturb(self, node: bytes, chain: str) -> None:
        """Let an application ask, and a tracker say something that nobody asked for."""
        self.reading.run(self.reading.tell(Request(1, ListChains(0))))
        self.hear(node, ChainChanged(chain, 77))
        self.hear(node, Written(self.rng.randint(1, 9), 3))

    def hear(self, node: bytes, message: ChainChanged | Written) -> None:
        try:
            self.reading.run(self.reading.hear(node, message))
        except RemoteError:  # which costs a tracker its link
            self.reading.down(node)

    def heal(self) -> None:
        """Let all trackers have everything, and answer."""
        reading = self.reading
        reading.deaf = set()
        for _ in NODES_OF:
            for node in NODES_OF:
                self.replicate(node, self.rng.choice(NODES_OF))
        for other in NODES_OF:
            self.replicate(NODES_OF[0], other)
        for node in NODES_OF:
            self.replicate(node, NODES_OF[0])
            reading.up(node)
        for chain in CHAINS:
            reading.run(reading.tell(Follow(chain)))


def test_whatever_happens_a_reader_ends_with_all_there_is() -> None:
    for seed in range(120):
        world = World(seed)
        reader = world.reading.reader
        for _ in range(60):
            world.step()
            for name, (size, bound) in reader.sizes().items():
                assert size <= bound, (seed, name)
        world.heal()
        world.reading.wait(LEFT_S + 100)
        story = world.reading.stories[NODES_OF[0]]
        for chain in (*CHAINS, NETWORK):
            assert reader.knows(chain), seed
            assert reader.history(chain).head == story[chain].history.head, seed
            assert reader.confirmed_at(chain) >= world.reading.now - 100, seed
        assert reader.sizes()["registry reads"][0] == 0
        assert reader.sizes()["left trackers"][0] == 0
        assert reader.may(STREAM, OWNER.node, Right.PUBLISH, world.reading.now)
        listed = {entry.node for entry in reader.trackers}
        assert set(world.reading.held) <= listed
        assert len(reader._readers) == min(2, len(listed))
        settings = reader.directory(StreamPart(STREAM, 0))
        assert {contact.node for contact in settings.trackers} == listed
