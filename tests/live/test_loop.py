"""How our processes run and end, in real ones."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anabranch.live.loop import close_server, run
from support import processes
from support.waiting import limit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

TIMEOUT_S = 30.0
CHILD = """
import threading
from anabranch.live.loop import ending, run

async def main():
    ended = ending(with_parent={with_parent})
    print("ready", flush=True)
    await ended.wait()
    print("ended", flush=True)

run(main())
{then}
"""
# Whoever waits for its parent in a thread of its own goes on doing so.
JOIN = """
print("over", flush=True)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
"""


@contextmanager
def child(with_parent: bool, then: str = "") -> Iterator["subprocess.Popen[str]"]:
    """Start a process that waits to be ended, and end it for certain."""
    source = CHILD.format(with_parent=with_parent, then=then)
    with processes.child(
        [sys.executable, "-c", source],
        TIMEOUT_S,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def last_words(process: "subprocess.Popen[str]") -> tuple[str, str, int]:
    """Wait for the end without closing the child's standard input."""
    assert process.stdout is not None
    assert process.stderr is not None
    status = process.wait(limit(TIMEOUT_S))
    return process.stdout.read(), process.stderr.read(), status


@pytest.mark.parametrize("with_parent", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_in_good_order(number: signal.Signals, with_parent: bool) -> None:
    with child(with_parent) as process:
        process.send_signal(number)
        assert last_words(process) == ("ended\n", "", 0)


def test_a_parent_that_goes_takes_its_child_along() -> None:
    with child(with_parent=True) as process:
        assert process.stdin is not None
        process.stdin.write("what is written to it does not matter\n")
        process.stdin.flush()
        assert process.poll() is None
        process.stdin.close()
        assert last_words(process) == ("ended\n", "", 0)


def test_a_parent_that_goes_after_the_loop_has_ended_is_no_mistake() -> None:
    with child(with_parent=True, then=JOIN) as process:
        process.terminate()
        assert process.stdout is not None
        assert process.stdin is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ended\n", "over\n"]
        process.stdin.close()
        assert last_words(process) == ("", "", 0)


def test_a_coroutine_runs_to_its_end_on_the_fastest_loop() -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__.split(".")[0]

    assert run(main()) == "uvloop"


def test_what_a_coroutine_raises_is_raised() -> None:
    async def main() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run(main())


@pytest.mark.parametrize("turns", range(4))
def test_server_that_closes_leaves_no_accepted_socket_open(turns: int) -> None:
    class Aborting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Aborting, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            await close_server(server)
            await asyncio.sleep(0)
            await server.wait_closed()

    asyncio.run(main())
    gc.collect()  # a socket that is left open warns, which fails the test
