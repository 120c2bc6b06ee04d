"""The papers' procedure with real clocks: a tracker and node processes on this machine.

Their links are as long as those of an underlay (live/transports/delayed.py). Nodes join one stream
all at once, and when their overlay stands and they have reported their round trips, each publishes
one message in turn (paper 000, section V-C.2). What is measured is what their applications see,
from the call that publishes to the message in the hands of a reader, by the one clock that all
processes of a machine share. The tracker's random choices are its own, so no two runs are alike.
"""

import asyncio
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, StreamPart, stream_part
from anabranch.core.prediction import predict
from anabranch.lab.emulated_node import Answer, Plan
from anabranch.lab.experiment import OptionError, Progress, Unit, unseen
from anabranch.live.client import connect
from anabranch.live.errors import AnabranchError
from anabranch.live.keys import save_key
from anabranch.live.loop import run
from anabranch.live.tracker import TrackerProcess
from anabranch.live.transports.delayed import DelayedTransport, Way
from anabranch.sim.network import Underlay

PROGRAM = "anabranch.lab.emulated_node"
NODES_PER_CORE = 16  # with more, they wait for the processor and not for their links
MESSAGES_PER_S = 13.6  # of all publishers together: paper 000, section V-C.2
WARM_UP, MEASURED = 0, 1  # rounds; the first messages of a process wait for code to be loaded
PATIENCE_S = 90.0  # for the processes to start, for the overlay to stand, for the last message
MEASURING_S = 5.0  # until a new link has as many echoes as its median takes
LAST_S = 1.0  # how long the last copies may take, after the last message
CLOCKS_S = 0.002  # how far two clocks of one machine may be apart
LOOK_EVERY_S = 0.1
MAX_LINE_BYTES = 1 << 24
LAST_WORDS = 800  # characters of what a process said before it died


def most_nodes() -> int:
    """Return how many nodes this machine carries."""
    return NODES_PER_CORE * (os.cpu_count() or 1)


def check_size(nodes: int) -> None:
    """Refuse what this machine does not carry."""
    if nodes > most_nodes():
        raise OptionError(
            f"{nodes} real nodes are too many for this machine, which has {os.cpu_count()} "
            f"processors: take {most_nodes()} for --nodes, or less"
        )


@dataclass(frozen=True)
class Emulated:
    """What one network measured: row publisher, column subscriber, the diagonal left out."""

    delays_s: NDArray[np.float64]
    hops: NDArray[np.uint8]
    duplicates: float  # frames that came to a node and were not the first, per message
    estimated_s: float  # the mean delay as the tracker predicts it by the nodes' reports
    links: tuple[tuple[int, int], ...]  # from whom to whom: each link both ways


def emulate(unit: Unit, underlay: Underlay, progress: Progress = unseen) -> Emulated:
    """Run a network of real nodes on this machine, as far apart as on the underlay."""
    check_size(unit.nodes)
    with alone():
        return run(Emulation(unit, underlay, progress).measure())


@contextmanager
def alone() -> Iterator[None]:
    """Wait until no other network is emulated here: two would delay each other's messages."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path = Path(tempfile.gettempdir(), f"anabranch-emulation-{os.getuid()}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ways_from(underlay: Underlay, here: int, places: Mapping[NodeId, int]) -> dict[NodeId, Way]:
    """Return how far everybody is from a place."""
    return {
        node: Way(underlay.delay_s(here, there), underlay.delay_s(there, here))
        for node, there in places.items()
        if there != here
    }


class NodeProcess:
    """A process of a node, as who started it sees it."""

    def __init__(self, plan: Plan, errors: Path) -> None:
        self._plan = plan
        self._errors = errors
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it, and give it its plan."""
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MAX_LINE_BYTES,
                start_new_session=True,  # whoever presses Ctrl-C is answered by us alone
            )
        self._write(msgspec.json.encode(self._plan))

    def say(self, word: str) -> None:
        """Tell it to do something."""
        self._write(word.encode())

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def answer(self) -> Answer:
        """Wait for its next line."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        except TimeoutError as error:
            raise self._failure(f"said nothing for {PATIENCE_S:.0f} s") from error
        if not line:
            raise self._failure("ended")
        return msgspec.json.decode(line, type=Answer)

    def _failure(self, what: str) -> AnabranchError:
        words = self._errors.read_text(errors="replace")[-LAST_WORDS:]
        return AnabranchError(f"node {self._plan.index} {what}: {words or 'without a word'}")

    async def ask(self, word: str) -> Answer:
        """Say something, and wait for the answer."""
        self.say(word)
        return await self.answer()

    async def stop(self) -> None:
        """End it: nobody waits for its goodbye."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Emulation:
    """One network, from its start to its end."""

    def __init__(self, unit: Unit, underlay: Underlay, progress: Progress) -> None:
        self._unit = unit
        self._underlay = underlay
        self._progress = progress
        self._secrets = [self._secret(f"node {index}") for index in range(unit.nodes)]
        self.ids = [Identity(secret).node for secret in self._secrets]
        self._tracker: TrackerProcess
        self._part: StreamPart

    def _secret(self, name: str) -> bytes:
        return hashlib.sha256(f"{self._unit.seed}/{name}".encode()).digest()

    async def measure(self) -> Emulated:
        """Start everything, measure, and end everything."""
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-")))
            await self._start_tracker(folder, stack)
            nodes = await self._start_nodes(folder, stack)
            self._progress(0.3)
            await asyncio.gather(*(node.ask("join") for node in nodes))
            await self._until_settled()
            self._progress(0.5)
            await self._round(nodes, WARM_UP)
            self._progress(0.7)
            await self._until_reported()
            self._progress(0.8)
            measured = await self._round(nodes, MEASURED)
            self._progress(1.0)
            return measured

    # --- Starting -------------------------------------------------------------------------

    async def _start_tracker(self, folder: Path, stack: AsyncExitStack) -> None:
        """Found a network with one tracker, and make the stream."""
        nodes, params = self._unit.nodes, self._unit.params
        secret, home = self._secret("tracker"), folder / "tracker"
        home.mkdir()
        save_key(home / "tracker.key", secret)
        places = {node: index for index, node in enumerate(self.ids)}
        ways = ways_from(self._underlay, nodes, places)
        self._tracker = TrackerProcess(home, through=lambda near: DelayedTransport(near, ways))
        await self._tracker.start()
        stack.push_async_callback(self._tracker.stop)
        await self._tracker.take_place()
        owner = connect(str(self._tracker.address), key=secret, key_store=folder / "owner.keys")
        async with owner as network:
            stream = await network.create_stream(
                "emulation",
                overlay=params.overlay,
                degree=params.degree,
                public=("publish", "subscribe"),
            )
        self._part = stream_part(stream.id)

    async def _start_nodes(self, folder: Path, stack: AsyncExitStack) -> list[NodeProcess]:
        places = {node: index for index, node in enumerate(self.ids)}
        places[self._tracker.identity.node] = self._unit.nodes
        nodes = []
        for index, secret in enumerate(self._secrets):
            ways = ways_from(self._underlay, index, places)
            plan = Plan(
                index,
                secret,
                str(self._tracker.address),
                self._part.stream,
                list(ways.items()),
                str(folder / f"{index}.keys"),
            )
            node = NodeProcess(plan, folder / f"{index}.errors")
            await node.start()
            stack.push_async_callback(node.stop)
            nodes.append(node)
        for count, node in enumerate(nodes, 1):
            await node.answer()
            self._progress(0.3 * count / len(nodes))
        for node in nodes:
            await self._compare_clocks(node)
        return nodes

    async def _compare_clocks(self, node: NodeProcess) -> None:
        """See that a node's clocks show what ours does: delays are taken between two of them."""
        before = time.time()
        answer = await node.ask("time")
        after = time.time()
        for at in (answer.at, answer.node_at):
            if not before - CLOCKS_S <= at <= after + CLOCKS_S:
                raise AnabranchError(
                    f"the clocks of this machine's processes are {1000 * (at - before):.1f} ms "
                    "apart: was the time set just now? Run this again"
                )

    # --- Settling -------------------------------------------------------------------------

    async def _until_settled(self) -> None:
        """Wait until the overlay stands, and has not moved for as long as its echoes take."""
        give_up_at = time.monotonic() + PATIENCE_S
        links: Mapping[NodeId, tuple[NodeId, ...]] = {}
        since = time.monotonic()
        while time.monotonic() < give_up_at:
            before, links = links, self._links()
            if links != before or not self._stands(links):
                since = time.monotonic()
            elif time.monotonic() - since > MEASURING_S:
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise AnabranchError(
            f"{self._unit.nodes} nodes had no overlay after {PATIENCE_S:.0f} s: is the machine "
            "busy? Take fewer for --nodes"
        )

    def _links(self) -> dict[NodeId, tuple[NodeId, ...]]:
        known = self._tracker.machine.tracker.nodes(self._part)
        return {node: tuple(sorted(known[node].reported)) for node in sorted(known)}

    def _stands(self, links: dict[NodeId, tuple[NodeId, ...]]) -> bool:
        told = self._tracker.machine.tracker.topology(self._part)
        return len(links) == self._unit.nodes and links == told

    async def _until_reported(self) -> None:
        """Wait for a status of every node from now on: it tells the round trips as measured."""
        known = self._tracker.machine.tracker.nodes(self._part)
        now, give_up_at = self._tracker.driver.now(), time.monotonic() + PATIENCE_S
        while any(node.heard_at < now for node in known.values()):
            if time.monotonic() > give_up_at:
                raise AnabranchError("a node has stopped to report to the tracker")
            await asyncio.sleep(LOOK_EVERY_S)

    # --- Measuring ------------------------------------------------------------------------

    async def _round(self, nodes: Sequence[NodeProcess], number: int) -> Emulated:
        """Let each node publish one message; return when everybody has them all."""
        loop, links = asyncio.get_running_loop(), self._links()
        before = await asyncio.gather(*(node.ask("tell") for node in nodes))
        began = loop.time()
        for turn, node in enumerate(nodes, 1):
            node.say(f"publish {number}")
            await asyncio.sleep(max(0.0, began + turn / MESSAGES_PER_S - loop.time()))
        give_up_at = loop.time() + PATIENCE_S
        while True:
            await asyncio.sleep(LAST_S)
            after = await asyncio.gather(*(node.ask("tell") for node in nodes))
            if all(_count(answer, number) >= len(nodes) - 1 for answer in after):
                break
            if loop.time() > give_up_at:
                raise AnabranchError("some messages have not come: is the machine busy?")
        if self._links() != links:
            raise AnabranchError("the overlay changed while it was measured: run this again")
        copies = sum(
            now.duplicates - then.duplicates for now, then in zip(after, before, strict=True)
        )
        return self._summary(after, number, copies)

    def _summary(self, answers: Sequence[Answer], number: int, copies: int) -> Emulated:
        size = len(answers)
        delays_s, hops = np.full((size, size), np.nan), np.zeros((size, size), dtype=np.uint8)
        for subscriber, answer in enumerate(answers):
            for arrival in answer.arrivals:
                if arrival.round == number:
                    delays_s[arrival.publisher, subscriber] = arrival.delay_s
                    hops[arrival.publisher, subscriber] = arrival.hops
        place = {node: index for index, node in enumerate(self.ids)}
        links = [(place[a], place[b]) for a, near in self._links().items() for b in near]
        estimated_s = self._estimate_s()
        return Emulated(delays_s, hops, copies / size**2, estimated_s, tuple(sorted(links)))

    def _estimate_s(self) -> float:
        """Return what the tracker predicts, by what it was told."""
        tracker = self._tracker.machine.tracker
        topology, rtts_us = tracker.topology(self._part), tracker.rtts_us(self._part)
        mean_ms = predict(topology, rtts_us, sources=list(topology)).mean_ms
        assert mean_ms is not None
        return mean_ms / 1000


def _count(answer: Answer, number: int) -> int:
    return sum(arrival.round == number for arrival in answer.arrivals)
