"""Networks of real processes: some are killed as a power cut would, and the rest carry on."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from anabranch import Network, Stream, connect
from anabranch.core.ids import show
from anabranch.live.local import Child, LocalNetwork
from live.networks import eventually, run, traffic
from live.readers import all_have, read
from support.waiting import Limit

CARRIERS = 4
DEGREE = 4
BACK_S = 40.0

PARENT = """
import asyncio, sys
from pathlib import Path
from anabranch.live.local import LocalNetwork

async def main():
    network = LocalNetwork(Path(sys.argv[1]))
    await network.start(1, 1)
    print(*(child.pid for child in (*network.trackers, *network.nodes)), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Processes:
    """A tracker and carriers in processes of their own, and a publisher and a reader in ours."""

    def __init__(self, network: LocalNetwork, publisher: Network, stream: Stream) -> None:
        self.network = network
        self.stream = stream
        self.ours = [publisher]

    @property
    def alive(self) -> list[Child]:
        """The carriers that run."""
        return [child for child in self.network.nodes if child.alive]

    async def add_carrier(self) -> None:
        """Start one more carrier."""
        await self.network.add_node([self.stream.id], ["--interval", "0.1"])

    async def reported(self) -> dict[str, set[str]]:
        """Return which neighbours each node of the stream says it has, as the tracker heard."""
        found: dict[str, set[str]] = {}
        try:
            async with aiohttp.ClientSession() as session:
                for node in (await self._get(session, "/nodes"))["nodes"]:
                    page = await self._get(session, f"/nodes/{node['node']}")
                    for part in page.get("parts", ()):  # none, if it has gone meanwhile
                        found[node["node"]] = set(part["reported"])
        except aiohttp.ClientConnectionError:
            return {}
        return found

    async def _get(self, session: aiohttp.ClientSession, page: str) -> Any:
        async with session.get(self.network.trackers[0].ready["http"] + page) as answer:
            return await answer.json()

    async def all_linked(self) -> None:
        """Wait until the tracker has heard of all, and only them, with all their neighbours."""
        names = {str(child.ready["node"]) for child in self.alive}
        names |= {show(network.node.node) for network in self.ours}

        def complete(found: dict[str, set[str]]) -> bool:
            degree = min(DEGREE, len(names) - 1)
            return set(found) == names and all(
                len(peers) == degree and peers <= names for peers in found.values()
            )

        until = Limit(BACK_S)
        while not complete(found := await self.reported()):
            assert not until.passed, f"not linked as they should be: {found}"
            await asyncio.sleep(0.1)

    async def all_delivered(self, count: int) -> None:
        """Wait until every carrier says that it was delivered so many messages, and no more."""
        await eventually(
            lambda: all(delivered(child, self.stream.id) == count for child in self.alive),
            f"{count} messages at every process",
        )


def delivered(child: Child, stream: str) -> int:
    """Return what a process has counted."""
    return int(child.last["stats"]["parts"][f"{stream}#0"]["delivered"])


@asynccontextmanager
async def processes(folder: Path) -> AsyncIterator[Processes]:
    """Run a tracker, carriers of one stream, a publisher and a reader."""
    network = LocalNetwork(folder)
    try:
        await network.start(trackers=1, nodes=0)
        async with (
            connect(network.address, key=network.owner_key) as publisher,
            connect(network.address, key=network.owner_key) as reading,
        ):
            stream = await publisher.create_stream("processes", degree=DEGREE)
            running = Processes(network, publisher, stream)
            async with asyncio.TaskGroup() as starting:
                for _ in range(CARRIERS):
                    starting.create_task(running.add_carrier())
            running.ours.append(reading)
            async with stream.subscribe():  # which takes the publisher into the overlay
                yield running
    finally:
        await network.stop()


def test_a_node_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path) as running:
            reader = await read(await running.ours[1].stream(running.stream.id))
            await running.all_linked()
            async with traffic(running.stream) as published:
                await eventually(lambda: len(published) > 20, "traffic")
                await running.network.nodes[0].kill()
                assert len(running.alive) == CARRIERS - 1
                await running.all_linked()
            await running.all_delivered(len(published))
            await all_have([reader], len(published))
            assert sorted(reader.contents) == published
            # Whoever comes in its stead is taken in.
            await running.add_carrier()
            await running.all_linked()

    run(main(), timeout_s=120.0)


def test_a_tracker_that_is_killed_and_started_again_finds_its_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with processes(tmp_path) as running:
            reader = await read(await running.ours[1].stream(running.stream.id))
            await running.all_linked()
            [tracker] = running.network.trackers
            async with traffic(running.stream) as published:
                await tracker.kill()
                assert await running.reported() == {}
                so_far = len(published)
                await eventually(lambda: len(published) > so_far + 50, "traffic goes on")
                where = tracker.ready["address"]
                assert (await tracker.start())["address"] == where
                await running.all_linked()
            await running.all_delivered(len(published))
            await all_have([reader], len(published))
            assert sorted(reader.contents) == published
            # The registry was on its disk.
            assert await running.ours[0].streams() == [running.stream.id]

    run(main(), timeout_s=120.0)


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        pids = [int(word) for word in (await parent.stdout.readline()).split()]
        try:
            assert len(pids) == 2
            assert all(runs(pid) for pid in pids)
        finally:
            parent.send_signal(signal.SIGKILL)
            await parent.wait()
        await eventually(lambda: not any(runs(pid) for pid in pids), "the children have ended")

    run(main())


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and that nobody buried does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not status.parent.parent.exists()  # where there is no such file of any process
