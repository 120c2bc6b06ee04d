"""The live network and the simulator, given the same nodes, workload and kills, do the same.

The simulation runs first. The live network, over real sockets, must then pass through the same
states: at every point where things have come to rest, the same neighbours and the same messages
delivered at every node that is there. Nodes have the same keys in both and trackers draw graphs
with the same randomness; time, packets and frames are each world's own.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from anabranch import Network, Stream, connect
from anabranch.core import frames
from anabranch.core.identity import Identity
from anabranch.core.ids import FrameHead, NodeId, StreamPart
from anabranch.live.driver import Driver
from anabranch.overlays.regular_graph import N, RegularGraph
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, Observer, SimNode
from anabranch.sim.simulator import START_AT, Simulator
from live.networks import LiveNetwork, eventually, live_network, run
from live.readers import Reader, read

SEED = 7
NODES = 12
PUBLISHERS = (0, 1, 2)
REST_S = 20.0  # of simulated time, after which nothing happens any more
QUIET_S = 4.0  # who joins this long after a message is not shown it any more

Step = tuple[str, int]


class State(msgspec.Struct):
    """What can be seen of a world at rest, by the numbers of the nodes."""

    neighbours: dict[int, list[int]]
    delivered: dict[int, dict[int, list[str]]]  # at a node, of a publisher, in their order

    def unordered(self) -> "State":
        """Forget in which order messages came."""
        return State(
            self.neighbours,
            {
                node: {publisher: sorted(of_one) for publisher, of_one in of_node.items()}
                for node, of_node in self.delivered.items()
            },
        )


def workload(kills: Sequence[Step]) -> list[Step]:
    """Three publishers; a node comes late, one goes early, and some die while messages flow."""
    joins = [("join", node) for node in range(NODES - 1)]
    burst = [("publish", publisher) for _ in range(8) for publisher in PUBLISHERS]
    steps = [*joins, *burst, ("rest", 0), ("join", NODES - 1), *burst, ("rest", 0)]
    for kill in kills:
        half = len(burst) // 2
        steps += [*burst[:half], kill, *burst[half:], ("rest", 0)]
    return [*steps, ("leave", 3), *burst, ("rest", 0)]


class SameGraph(RegularGraph[N]):
    """Draws for each join and each leave as the one in the other world does.

    It begins anew each time, since the one whose time runs faster may look more often whether
    there is anything to mend.
    """

    def join(self, node: N) -> list[N]:
        """Add a node and give it neighbours."""
        self._random = random.Random(f"{SEED}/join/{node!r}").random
        return super().join(node)

    def leave(self, node: N) -> list[N]:
        """Remove a node and refill the slots of its former neighbours."""
        self._random = random.Random(f"{SEED}/leave/{node!r}").random
        return super().leave(node)


def identity(name: str) -> Identity:
    """Return a key as the simulator makes it."""
    return Identity(hashlib.sha256(f"{SEED}/{name}".encode()).digest())


IDS = [identity(f"node {index}").node for index in range(NODES)]


class World:
    """What both worlds have in common."""

    def __init__(self) -> None:
        self.members: set[int] = set()
        self.numbered = 0

    def content(self, publisher: int) -> str:
        """Return the next message."""
        self.numbered += 1
        return f"{publisher}/{self.numbered:03}"

    async def play(self, steps: Sequence[Step]) -> list[State]:
        """Do one step after the other; return how things stood whenever they rested."""
        states = []
        for kind, number in steps:
            if kind == "rest":
                states.append(await self.rest())
            else:
                await getattr(self, kind)(number)
        return states

    async def rest(self) -> State:
        """Wait until nothing happens any more."""
        raise NotImplementedError

    def state(self, neighbours: dict[int, Sequence[NodeId]], got: dict[int, list[str]]) -> State:
        """Describe the world by numbers."""
        delivered: dict[int, dict[int, list[str]]] = {}
        for node in sorted(self.members):
            of_node = delivered[node] = {publisher: [] for publisher in PUBLISHERS}
            for content in got[node]:
                of_node[int(content.split("/")[0])].append(content)
        return State(
            {node: sorted(map(IDS.index, neighbours[node])) for node in sorted(self.members)},
            delivered,
        )


class SimulatedWorld(World, Observer):
    """Machines on a heap of events."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulator(Constant(2.0), SEED)
        self.sim.observer = self
        self.cluster = Cluster(self.sim, SEED, NODES, real_keys=True)
        [self.part] = self.cluster.parts
        self.got: dict[int, list[str]] = {index: [] for index in range(NODES)}
        self.pass_s(1.0)

    def pass_s(self, seconds: float) -> None:
        self.sim.run(max(START_AT, self.sim.now) + seconds)

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        for message in frames.messages(frame):
            self.got[IDS.index(node.id)].append(message.content.decode())

    async def join(self, index: int) -> None:
        self.pass_s(QUIET_S)
        self.members.add(index)
        self.cluster.subscribe(self.cluster.peers[index], self.part)
        self.pass_s(QUIET_S)

    async def leave(self, index: int) -> None:
        self.members.remove(index)
        self.cluster.unsubscribe(self.cluster.peers[index], self.part)
        self.pass_s(QUIET_S)

    async def publish(self, index: int) -> None:
        content = self.content(index).encode()
        self.cluster.publish(self.cluster.peers[index], self.part, [content])
        self.pass_s(0.001)

    async def kill(self, index: int) -> None:
        self.members.remove(index)
        self.sim.crash(self.cluster.peers[index])

    async def kill_tracker(self, index: int) -> None:
        self.sim.crash(self.cluster.trackers[index])

    async def rest(self) -> State:
        self.pass_s(REST_S)
        neighbours: dict[int, Sequence[NodeId]] = {
            index: self.cluster.neighbours(self.cluster.peers[index], self.part)
            for index in self.members
        }
        return self.state(neighbours, self.got)


class LiveWorld(World):
    """Nodes and a tracker on real sockets, which rest when they have come as far as expected."""

    def __init__(self, network: LiveNetwork, stream: str, expected: Sequence[State]) -> None:
        super().__init__()
        self.network = network
        self.part = StreamPart(stream, 0)
        self.nodes: dict[int, Network] = {}
        self.streams: dict[int, Stream] = {}
        self.readers: dict[int, Reader] = {}
        self._expected = list(reversed(expected))
        self._publishing: list[asyncio.Task[object]] = []
        self._published_at = 0.0

    async def join(self, index: int) -> None:
        until = self._published_at + QUIET_S
        await eventually(lambda: time.monotonic() > until, "a while without messages")
        key = identity(f"node {index}")
        network = connect(str(self.network.address), key=key, node_key=key)
        self.nodes[index] = await network.__aenter__()
        self.streams[index] = await network.stream(self.part.stream)
        self.readers[index] = await read(self.streams[index])
        self.members.add(index)
        tracker = self.network.trackers[0].machine.tracker
        await eventually(
            lambda: (
                len(tracker.nodes(self.part)) == len(self.members)
                and all(
                    list(self.neighbours(other)) == list(tracker.neighbours(self.part, IDS[other]))
                    for other in self.members
                )
            ),
            f"node {index} in its place",
        )

    def neighbours(self, index: int) -> Sequence[NodeId]:
        return self.nodes[index].node.peer.neighbours(self.part)

    async def leave(self, index: int) -> None:
        self.members.remove(index)
        await self.readers[index].stop()

    async def publish(self, index: int) -> None:
        publishing = self.streams[index].publish(self.content(index))
        self._publishing.append(asyncio.create_task(publishing))
        await asyncio.sleep(0)
        self._published_at = time.monotonic()

    async def kill(self, index: int) -> None:
        self.members.remove(index)
        node = self.nodes.pop(index).node
        die(node.driver)
        await self.readers[index].stop()
        await node.stop(0.0)

    async def kill_tracker(self, index: int) -> None:
        tracker = self.network.trackers.pop(index)
        die(tracker.driver)
        await tracker.stop()

    async def rest(self) -> State:
        await asyncio.gather(*self._publishing)
        self._publishing.clear()
        expected = self._expected.pop().unordered()
        with suppress(AssertionError):  # what the worlds differ in is said below
            await eventually(lambda: self.look().unordered() == expected, "the simulated state")
        state = self.look()
        assert state.unordered() == expected
        return state

    def look(self) -> State:
        neighbours = {index: self.neighbours(index) for index in self.members}
        return self.state(neighbours, {i: self.readers[i].contents for i in self.members})

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.close(0.0)


def die(driver: Driver) -> None:
    """End as a power cut would: nobody is told, and every socket breaks."""
    links = list(driver.links.values())
    driver.detach()
    for link in links:
        link.wire.abort()  # type: ignore[attr-defined]


async def play_live(folder: Path, steps: Sequence[Step], expected: Sequence[State]) -> list[State]:
    """Play the steps on a network of sockets, whose stream is the simulator's."""
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(live_network(folder))
        owner = await network.join(identity("owner"))
        stream = await owner.create_stream("simulated/0", public=("publish", "subscribe"))
        world = LiveWorld(network, stream.id, expected)
        stack.push_async_callback(world.close)
        return await world.play(steps)


@pytest.mark.parametrize(
    "kills",
    [
        [("kill", 5), ("kill", 8)],
        [("kill_tracker", 0), ("kill", 5), ("kill", 8)],
    ],
    ids=["nodes", "tracker"],
)
def test_the_live_network_does_what_the_simulated_one_does(
    kills: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sim.cluster", "live.tracker"):
        monkeypatch.setattr(f"anabranch.{module}.TOPOLOGIES", {"random-regular": SameGraph})
    steps = workload(kills)
    simulated = asyncio.run(SimulatedWorld().play(steps))
    live = run(play_live(tmp_path, steps, simulated), timeout_s=120.0)
    assert len(live) == len(simulated)  # and equal, or it would not have come to its end
    # While links neither come nor go, the messages of a publisher even keep their order.
    assert live[0] == simulated[0]
    # What both agree on is that nobody misses anything while it is there.
    everything = sum(1 for kind, _ in steps if kind == "publish")
    last = simulated[-1].delivered
    assert sorted(last) == [0, 1, 2, 4, 6, 7, 9, 10, 11]
    assert {sum(map(len, of_node.values())) for node, of_node in last.items() if node != 11} == {
        everything
    }
    assert sum(map(len, last[11].values())) == everything - 24
