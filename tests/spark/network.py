"""A live network beside Spark: its loop runs in a thread, so that Spark's workers can reach it."""

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from anabranch import Network, Stream
from anabranch.core.ids import StreamPart, show
from anabranch.live.keys import load_key, new_key, save_key
from live.networks import LiveNetwork, live_network
from support.waiting import limit, wait_until

T = TypeVar("T")
TIMEOUT_S = 60.0


class RunningNetwork:
    """A network in this process; `run` does something on its loop and waits for it."""

    def __init__(self, live: LiveNetwork, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.live = live
        self.folder = folder
        self._loop = loop

    @property
    def address(self) -> str:
        """The network's address, for the option of that name."""
        return str(self.live.address)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something on the network's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
        """Do something on the network's loop; fail rather than hang."""
        return self.start(work).result(limit(timeout_s))

    def new_key_file(self, name: str) -> Path:
        """Make the key of one more user, in a file."""
        path = self.folder / f"{name}.key"
        save_key(path, new_key()[1])
        return path

    def options(self, key_file: Path, **more: str) -> dict[str, str]:
        """Return the options with which Spark reaches this network as one user."""
        store = key_file.with_suffix(".sqlite")
        return {
            "network": self.address,
            "keyFile": str(key_file),
            "keyStore": str(store),
            **more,
        }

    def join(self, key_file: Path, **more: Any) -> Network:
        """Connect a node as one user, with the key store that `options` names."""
        more.setdefault("key_store", key_file.with_suffix(".sqlite"))
        return self.run(self.live.join(load_key(key_file), **more))

    def store(self, stream: Stream, contents: Iterable[Any], **more: Any) -> None:
        """Publish in order, and wait until every storage node of the stream serves it all."""
        contents = list(contents)
        wanted = max(self._stored(stream)) + len(contents)

        async def publish() -> None:
            sent = [asyncio.create_task(stream.publish(each, **more)) for each in contents]
            await asyncio.gather(*sent)

        self.run(publish())
        wait_until(lambda: min(self._stored(stream)) >= wanted, "all is stored", TIMEOUT_S)

    def _stored(self, stream: Stream) -> list[int]:
        """Return how many messages each storage node of the stream that runs can serve."""

        async def look() -> list[int]:
            parts = [StreamPart(stream.id, partition) for partition in range(stream.partitions)]
            names = stream.info()["storage"]
            nodes = [node for node in self.live.storage if show(node.identity.node) in names]
            found = [[node.storage.status(part) for part in parts] for node in nodes]
            return [sum(status.high for status in row if status is not None) for row in found]

        return self.run(look())


@contextmanager
def running_network(folder: Path, trackers: int = 1, storage: int = 1) -> Iterator[RunningNetwork]:
    """Run trackers and storage nodes in a thread; whatever was started ends with the context."""
    found: Future[tuple[LiveNetwork, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def main() -> None:
        try:
            async with live_network(folder, trackers, storage) as live:
                ended = asyncio.Event()
                found.set_result((live, asyncio.get_running_loop(), ended))
                await ended.wait()
        except BaseException as error:
            if found.done():
                raise
            found.set_exception(error)

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="network")
    thread.start()
    live, loop, ended = found.result(limit(TIMEOUT_S))
    try:
        yield RunningNetwork(live, loop, folder)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(limit(TIMEOUT_S))
        assert not thread.is_alive(), f"the network does not end: {under_way(loop)}"


def under_way(loop: asyncio.AbstractEventLoop) -> str:
    """Tell what a loop that does not end still waits for."""
    told = io.StringIO()
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=told)
    for thread, frame in sys._current_frames().items():
        print(f"thread {thread}:", file=told)
        traceback.print_stack(frame, file=told)
    return told.getvalue()
