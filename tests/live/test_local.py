"""A network on this machine: its processes start, say why they cannot, and can be started again."""

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from anabranch import AnabranchError, connect
from anabranch.live.address import parse_address
from anabranch.live.local import Child, LocalNetwork
from live.networks import run


def test_a_network_is_taken_up_again_from_its_folder(tmp_path: Path) -> None:
    async def once(seen: list[float]) -> tuple[bytes, list[str]]:
        network = LocalNetwork(tmp_path / "network")
        try:
            await network.start(trackers=1, nodes=1, progress=seen.append)
            assert all(child.alive for child in (*network.trackers, *network.nodes))
            async with connect(network.address, key=network.owner_key) as client:
                await client.create_stream("kept", exist_ok=True)
                return parse_address(network.address).genesis, await client.streams()
        finally:
            await network.stop()
            assert not any(child.alive for child in (*network.trackers, *network.nodes))

    seen: list[float] = []
    first, streams = run(once(seen))
    assert seen == [0.5, 1.0]
    assert run(once([])) == (first, streams)
    assert len(streams) == 1


def test_every_tracker_is_named_in_the_address(tmp_path: Path) -> None:
    async def main() -> None:
        network = LocalNetwork(tmp_path)
        try:
            await network.start(trackers=2, nodes=0)
            ports = [host.port for host in parse_address(network.address).hosts]
            assert ports == [tracker.ready["port"] for tracker in network.trackers]
            assert all(tracker.ready["listed"] for tracker in network.trackers)
        finally:
            await network.stop()

    run(main())


def test_a_process_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            child = Child("tracker 7", ["tracker", "--data", str(tmp_path), "--port", port])
            with pytest.raises(
                AnabranchError, match=f"(?s)tracker 7 did not start.*{port}"
            ) as told:
                await child.start()
        assert "choose another port" in str(told.value)
        assert not child.alive

    run(main())


def test_a_death_is_told_of_unless_it_was_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        network = LocalNetwork(tmp_path)
        try:
            await network.start(trackers=1, nodes=3)
            killed, stopped, struck = network.nodes
            await killed.kill()
            await stopped.stop()
            os.kill(struck.pid, signal.SIGKILL)
            assert await network.next_death() is struck
            assert (struck.alive, struck.exit_code) == (False, -signal.SIGKILL)
            # Started again, it can die again; who is started anew has not died.
            await killed.start()
            await struck.start()
            os.kill(struck.pid, signal.SIGTERM)
            assert await network.next_death() is struck
            assert struck.exit_code == 0
            assert killed.alive
        finally:
            await network.stop()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(network.next_death(), 0)

    run(main())


def test_what_a_process_says_is_kept_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        network = LocalNetwork(tmp_path)
        try:
            await network.start(trackers=1, nodes=0)
            node = await network.add_node(more=["--interval", "0.05"])
            told = asyncio.Event()
            node.on_line = lambda line: told.set() if line["event"] == "stats" else None
            await told.wait()
            assert node.last["stats"]["node"] == node.ready["node"]
        finally:
            await network.stop()
        assert node.last["stopped"]["node"] == node.ready["node"]  # it left in good order

    run(main())
