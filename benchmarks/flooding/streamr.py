"""Streamr's own node and tracker, 8.5.5 of npm, the last with trackers; driven by streamr.mjs.

Nodes have four neighbours each, over WebRTC. They neither sign nor check: their client library
does, so this is measured without. All nodes of a process of ours are in one process of node, whose
work counts. A message's delay ends where node hands it over: the way back to Python is left out.
Content is JSON of 308 characters.

The environment variable ANABRANCH_STREAMR names the folder in which node_modules is.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

from flooding.harness import PATIENCE_S, free_ports
from flooding.meshes import Mailbox

FOLDER = "ANABRANCH_STREAMR"
NEEDED = (
    "@streamr/network-node/package.json",
    "@streamr/network-tracker/package.json",
    "node-datachannel/build/Release/node_datachannel.node",
)
DRIVER = Path(__file__).with_name("streamr.mjs")


class Driver:
    """A process of node that runs the driver."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self.mailboxes: dict[bytes, Mailbox] = {}
        self._process = process
        self._answers: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls) -> "Driver":
        """Start it, and see that its clock is ours."""
        process = await asyncio.create_subprocess_exec(
            *("node", str(DRIVER)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"LOG_LEVEL": "silent"},
        )
        driver, before = cls(process), time.perf_counter_ns()
        [told] = await driver.ask("clock")
        assert before < int(told) < time.perf_counter_ns(), "node has another clock"
        return driver

    def tell(self, command: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())

    async def ask(self, command: str) -> list[bytes]:
        """Send a command and return what is answered."""
        self.tell(command)
        verb, *words = await asyncio.wait_for(self._answers.get(), PATIENCE_S)
        assert verb != b"", f"node ended: {command}"
        return words

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            words = line.split()
            if words[0] != b"got":
                self._answers.put_nowait(words)
                continue
            _, index, sent, phase, received = words
            took = int(received) - int(sent)
            stamp = (time.perf_counter_ns() - took).to_bytes(8)
            self.mailboxes[index].put(stamp + bytes([int(phase)]))
        self._answers.put_nowait([b""])

    async def stop(self) -> None:
        """End the process."""
        self._reader.cancel()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()


class StreamrMember:
    """A node."""

    def __init__(self, driver: Driver, index: int, alone: bool) -> None:
        self.worker = driver.pid
        self._driver = driver
        self._index = index
        self._alone = alone
        self._mailbox = driver.mailboxes[str(index).encode()] = Mailbox()

    async def publish(self, payload: bytes) -> None:
        """Publish."""
        sent = int.from_bytes(payload[:8])
        self._driver.tell(f"publish {self._index} {sent} {payload[8]}")

    def receive(self) -> AsyncIterator[bytes]:
        """Yield when each message was sent, moved by its way from node to here, and its phase."""
        return self._mailbox.read()

    async def close(self) -> None:
        """Leave; who has a process of node alone ends it."""
        if self._alone:
            await self._driver.stop()


class Streamr:
    """Nodes of Streamr, and a tracker."""

    name, signed = "streamr", False

    def __init__(self) -> None:
        self._tracker: Driver | None = None
        self._nodes: Driver | None = None

    @staticmethod
    def problem() -> str:
        """Return why it cannot be measured."""
        if shutil.which("node") is None:
            return "node is not installed"
        if FOLDER not in os.environ:
            return f"{FOLDER} does not name a folder with its packages"
        modules = Path(os.environ[FOLDER]) / "node_modules"
        missing = [path for path in NEEDED if not (modules / path).exists()]
        return f"{FOLDER} lacks {missing[0]}" if missing else ""

    async def start(self) -> str:
        """Start a tracker."""
        [port] = free_ports(1)
        self._tracker = await Driver.start()
        await self._tracker.ask(f"tracker {port}")
        return str(port)

    async def join(self, index: int, where: str) -> StreamrMember:
        """Start a node: where the tracker runs all are together, and elsewhere there is one."""
        alone = self._tracker is None
        if self._nodes is None:
            self._nodes = await Driver.start()
        member = StreamrMember(self._nodes, index, alone)
        await self._nodes.ask(f"join {index} {where}")
        return member

    async def stop(self) -> None:
        """End the tracker and the nodes that are here."""
        for driver in (self._nodes, self._tracker):
            if driver is not None:
                await driver.stop()

    def helpers(self) -> list[int]:
        """Return the tracker, and the nodes if they are here."""
        return [driver.pid for driver in (self._tracker, self._nodes) if driver is not None]
