"""The event loop of our processes: uvloop where there is one, and an end that cleans up."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from anabranch.live.descriptors import raise_limit

T = TypeVar("T")

ACCEPTING_TURNS = 3  # of the loop, until the protocol of an accepted socket knows of it


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on the fastest loop there is, with all descriptors there are."""
    raise_limit()
    if sys.platform == "win32":
        return asyncio.run(main)
    import uvloop

    return uvloop.run(main)


async def close_server(server: asyncio.Server) -> None:
    """Stop listening once every accepted socket has reached its protocol.

    The loop of asyncio never closes a socket that it accepted in the turn before its server closes.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
    server.close()


def ending(with_parent: bool = False) -> asyncio.Event:
    """Return an event that is set when the process is asked to end.

    It is asked by SIGINT or SIGTERM and, where its parent holds the other end of its standard
    input, by that end closing: so no child outlives the one who started it.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(ended.set))
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
    if with_parent:
        _watch_parent(lambda: loop.call_soon_threadsafe(ended.set))
    return ended


def _watch_parent(gone: Callable[[], object]) -> None:
    def wait() -> None:
        # Not through sys.stdin: Python could not end while a thread holds the lock of its buffer.
        while os.read(0, 4096):
            pass
        with suppress(RuntimeError):  # the loop has ended before its parent
            gone()

    threading.Thread(target=wait, daemon=True).start()
