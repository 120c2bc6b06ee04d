"""A whole network on this machine: trackers and nodes as processes of their own.

Each child prints one JSON object a line; the first says that it is ready. A child that was started
here ends when we do, however we end: its standard input closes.
"""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.live.errors import AnabranchError
from anabranch.live.keys import load_or_make_key

READY_S = 30.0
STOP_S = 5.0
MAX_LINE_BYTES = 4 << 20
LAST_WORDS = 20  # lines of its standard error that are shown when a child fails


class Child:
    """One process of the network."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.ready: dict[str, Any] = {}
        self.last: dict[str, Any] = {}  # the newest line of each kind of event, by event
        self.on_line: Callable[[dict[str, Any]], None] | None = None
        self.on_death: Callable[[], None] | None = None  # unless it was ended from here
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asked_to_end = False
        self._readers: list[asyncio.Task[None]] = []
        self._words: list[str] = []
        self._is_ready = asyncio.Event()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """What it ended with: the number of a signal, negated, if one ended it."""
        return None if self._process is None else self._process.returncode

    @property
    def last_words(self) -> str:
        """The last lines of its standard error."""
        return "\n".join(self._words)

    async def start(self) -> dict[str, Any]:
        """Start it and wait until it says that it is ready."""
        self._is_ready.clear()
        self._asked_to_end = False
        self._words.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "anabranch",
            *self.arguments,
            "--json",
            "--with-parent",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(process.stdout)),
            asyncio.create_task(self._read_errors(process.stderr)),
        ]
        self._watching = asyncio.create_task(self._watch(process))
        ready = asyncio.create_task(self._is_ready.wait())
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({ready, ended}, timeout=READY_S, return_when="FIRST_COMPLETED")
        for task in (ready, ended):
            task.cancel()
        if not self._is_ready.is_set():
            await self.kill()
            words = self.last_words.removeprefix("error: ")
            raise AnabranchError(f"{self.name} did not start: {words or 'it said nothing'}")
        return self.ready

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            self.last[str(said.get("event"))] = said
            if said.get("event") == "ready":
                self.ready = said
                self._is_ready.set()
            if self.on_line is not None:
                self.on_line(said)

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self._words.append(line.decode(errors="replace").rstrip())
            del self._words[:-LAST_WORDS]

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """See it end, and hear it out."""
        await process.wait()
        await asyncio.gather(*self._readers)
        if self._is_ready.is_set() and not self._asked_to_end and self.on_death is not None:
            self.on_death()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def kill(self) -> None:
        """End it as a power cut would."""
        self._asked_to_end = True
        self.signal(signal.SIGKILL)
        await self._wait()

    async def stop(self) -> None:
        """Let it leave in good order; end it if it does not."""
        self._asked_to_end = True
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._wait(), STOP_S)
        except TimeoutError:
            await self.kill()

    async def _wait(self) -> None:
        if self._process is not None and self._watching is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            await asyncio.shield(self._watching)


class LocalNetwork:
    """Trackers and nodes that run here, and the network's address."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder
        self.address = ""
        self.trackers: list[Child] = []
        self.nodes: list[Child] = []
        self.storage: list[Child] = []
        self._dead: asyncio.Queue[Child] = asyncio.Queue()  # one for each child, at most
        self._host = host
        self._port = port
        self.owner_key = folder / "owner.key"

    async def start(
        self,
        trackers: int,
        nodes: int,
        storage: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Start trackers and storage nodes, make them the network's, and start nodes.

        The nodes carry every stream.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalError(
                f"{self.folder} cannot be made a folder ({error.strerror}): name another"
            ) from error
        load_or_make_key(self.owner_key)
        started = 0

        async def tell(starting: Coroutine[Any, Any, Child]) -> None:
            nonlocal started
            await starting
            started += 1
            if progress is not None:
                progress(started / (trackers + storage + nodes))

        for index in range(trackers):
            await tell(self.add_tracker(index))
        for index in range(storage):
            await tell(self.add_storage(index))
        await asyncio.gather(*(tell(self.add_node()) for _ in range(nodes)))

    async def add_tracker(self, index: int) -> Child:
        """Start one more tracker; the first founds the network, or takes it up again."""
        port = self._port + 2 * index if self._port else 0
        arguments = ["tracker", "--data", str(self.folder / f"tracker-{index}")]
        arguments += ["--host", self._host, "--port", str(port)]
        arguments += ["--http-port", str(port + 1 if port else 0)]
        arguments += ["--owner-key", str(self.owner_key)]
        if self.address:
            arguments += ["--join", self.address]
        child = Child(f"tracker {index}", arguments)
        self._watch(child)
        self.trackers.append(child)
        ready = await child.start()
        # Should it be started again, it must be found where it was.
        child.arguments = _with_ports(arguments, ready)
        self.address = _joined(self.address, str(ready["network"]))
        return child

    async def add_storage(self, index: int, more: Sequence[str] = ()) -> Child:
        """Start one more storage node, or take one up again."""
        arguments = ["storage", "--data", str(self.folder / f"storage-{index}")]
        arguments += ["--address", self.address, "--host", self._host, "--port", "0"]
        arguments += ["--http-port", "0", "--owner-key", str(self.owner_key), *more]
        child = Child(f"storage {index}", arguments)
        self._watch(child)
        self.storage.append(child)
        child.arguments = _with_ports(arguments, await child.start())
        return child

    async def add_node(self, streams: Sequence[str] = (), more: Sequence[str] = ()) -> Child:
        """Start one more node; without streams it carries all there are."""
        key = self.folder / f"node-{len(self.nodes)}.key"
        identity = load_or_make_key(key)
        arguments = ["node", *(streams or ["--all"]), "--address", self.address]
        # The node is the owner's, and so may carry what is the owner's; its name is its own.
        arguments += ["--key", str(self.owner_key), "--node-key", str(key)]
        arguments += ["--listen", f"{self._host}:0", *more]
        child = Child(f"node {show(identity.node)[:8]}", arguments)
        self._watch(child)
        self.nodes.append(child)
        await child.start()
        return child

    def _watch(self, child: Child) -> None:
        child.on_death = lambda: self._dead.put_nowait(child)

    async def next_death(self) -> Child:
        """Wait for a process that ends though nobody here has asked it to."""
        return await self._dead.get()

    async def stop(self) -> None:
        """End everything that was started here."""
        await asyncio.gather(*(node.stop() for node in self.nodes))
        await asyncio.gather(*(node.stop() for node in self.storage))  # they store to the last
        await asyncio.gather(*(tracker.stop() for tracker in self.trackers))


def _with_ports(arguments: list[str], ready: dict[str, Any]) -> list[str]:
    fixed = list(arguments)
    fixed[fixed.index("--port") + 1] = str(ready["port"])
    fixed[fixed.index("--http-port") + 1] = str(ready["http_port"])
    return fixed


def _joined(address: str, more: str) -> str:
    """Add another tracker's place to a network's address."""
    return more if not address else f"{address},{more.split('@')[1]}"
