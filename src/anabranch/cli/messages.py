"""`anabranch publish`: JSON lines in; commands compose."""

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Annotated, Any

import typer

from anabranch.cli.console import STDERR, Printer, fail, handled, print_json, print_line
from anabranch.cli.options import (
    Address,
    AsJson,
    CloseWait,
    Data,
    KeyFile,
    Profile,
    network_of,
)
from anabranch.cli.processes import Recording, Trace, TraceLimit
from anabranch.core.errors import LocalError
from anabranch.core.machine import Notice
from anabranch.core.unstored import STORED_AGAIN, UNSTORED
from anabranch.live.client import Network
from anabranch.live.errors import AnabranchError, NotStored
from anabranch.live.leaving import CLOSE_WAIT_S
from anabranch.live.loop import ending, run
from anabranch.live.message import MessageId
from anabranch.live.metrics import cpu_ms
from anabranch.live.stream import Stream

IN_FLIGHT = 2_000  # lines that have been read and have no outcome yet
INTERRUPTED_S = 2.0  # how long messages under way may still take after Ctrl-C
LINES_AHEAD = 1_000  # lines that wait between the reader and the publisher

Name = Annotated[str, typer.Argument(help="0x<owner>/<path>, or the path of one of your own.")]


# --- publish --------------------------------------------------------------------------------


@handled()
def publish(
    stream: Name,
    message: Annotated[
        str | None, typer.Argument(help="One message; without it, the lines of standard input.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Messages are text; by default they are JSON.")
    ] = False,
    key_field: Annotated[
        str | None, typer.Option(help="The JSON field that is the key of its message, e.g. id.")
    ] = None,
    message_key: Annotated[str | None, typer.Option(help="The key of all messages.")] = None,
    partition: Annotated[int | None, typer.Option(help="The partition, for all messages.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print each message's id.")] = False,
    stored: Annotated[
        int, typer.Option(help="Wait until so many storage nodes hold each message.")
    ] = 0,
    patience: Annotated[
        float, typer.Option(help="Seconds that a message may wait for a neighbour.")
    ] = 60.0,
    close_wait: CloseWait = CLOSE_WAIT_S,
    data: Data = None,
    trace: Trace = None,
    trace_limit: TraceLimit = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Publish one message, or every line of standard input; one key goes to one partition."""

    async def main() -> dict[str, Any]:
        began = time.perf_counter()
        more = {"patience_s": patience, "recorder": recording.recorder, "data": data}
        async with network_of(profile, address, key, close_wait_s=close_wait, **more) as network:
            network.node.watch(_say_unstored)
            opened = await network.stream(stream)
            publisher = _Publisher(opened, key_field, message_key, partition, stored)
            problem: LocalError | None = None
            if message is not None:
                content = _parse(message, text, "the message")
                await publisher.publish_one(content, ids, as_json)
            else:
                try:
                    await publisher.publish_lines(text, ids, as_json)
                except LocalError as error:  # a wrong line: the lines before it are published
                    problem = error
            seconds = round(time.perf_counter() - began, 3)
            # Outside the `except` block, since close() raises NotStored only there.
            row = await publisher.leave(network, close_wait)
            if problem is not None:
                raise problem
            return {**row, "seconds": seconds, "cpu_ms": cpu_ms()}

    _check_choice(key_field, message_key, partition)
    _check_bounds(stored, patience, close_wait)
    with Recording(trace, trace_limit) as recording:
        row = run(main())
    _sum_up(row, message is None, as_json)


def _sum_up(row: dict[str, Any], several: bool, as_json: bool) -> None:
    if as_json:
        print_json(row)
    elif several or row["failed"] or row["not_stored"]:
        unstored = f", {row['not_stored']} not stored" if row["not_stored"] else ""
        typer.echo(f"{row['published']} published, {row['failed']} failed{unstored}", err=True)
    if row["failed"] or row["not_stored"]:
        raise typer.Exit(1)


def _say_unstored(notice: Notice) -> None:
    if notice.kind in (UNSTORED, STORED_AGAIN, "data-folder"):
        typer.echo(f"{notice.kind}: {notice.detail} {notice.part or ''}".rstrip(), err=True)


def _check_choice(key_field: str | None, message_key: str | None, partition: int | None) -> None:
    """A message has one key, and it or we say which partition it goes to."""
    given = {"--key-field": key_field, "--message-key": message_key, "--partition": partition}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        fail(f"{' and '.join(names[:2])} both choose the partition: leave one of them out")


def _check_bounds(stored: int, patience: float, close_wait: float) -> None:
    if stored < 0:
        fail(f"--stored {stored}: give the number of storage nodes, from 1 on")
    if patience <= 0:
        fail(f"--patience {patience:g}: give more than 0")
    if close_wait < 0:
        fail(f"--close-wait {close_wait:g}: give 0 or more")


def _show_id(name: MessageId, as_json: bool) -> str:
    return json.dumps({"id": str(name)}) if as_json else str(name)


def _parse(line: str, text: bool, where: str) -> Any:
    if text:
        return line
    try:
        return json.loads(line)
    except ValueError:
        raise LocalError(f"{where} is not JSON: quote text as JSON, or add --text") from None


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode().rstrip("\r")
    except UnicodeDecodeError:
        raise LocalError(f"line {number} is not UTF-8 text: encode what is binary") from None


class _Publisher:
    """Publishes with many messages under way at once, in order."""

    def __init__(
        self,
        stream: Stream,
        key_field: str | None,
        message_key: str | None,
        partition: int | None,
        stored: int,
    ) -> None:
        self.published = self._begun = 0
        self._stored = stored
        self._stream = stream
        self._key_field = key_field
        self._message_key = message_key
        self._partition = partition
        self._ended: asyncio.Event | None = None  # when we are interrupted
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def failed(self) -> int:
        """How many are not published, now that no more can be."""
        return self._begun - self.published

    def key(self, content: Any, where: str) -> str | None:
        """Return the key of a message, if it has one."""
        if self._key_field is None:
            return self._message_key
        if not isinstance(content, dict) or self._key_field not in content:
            raise LocalError(f"{where} has no field {self._key_field!r}: {content!r:.100}")
        return str(content[self._key_field])

    async def publish(self, content: Any, key: str | None) -> MessageId:
        """Publish one message and wait for its outcome."""
        self._begun += 1
        stream, partition = self._stream, self._partition
        if self._stored:
            copies = self._stored
            receipt = await stream.publish_stored(content, copies, key=key, partition=partition)
            name = receipt.id
        else:
            name = await stream.publish(content, key=key, partition=partition)
        self.published += 1
        return name

    async def publish_one(self, content: Any, ids: bool, as_json: bool) -> None:
        """Publish one message, and print its id or what went wrong."""
        try:
            name = await self.publish(content, self.key(content, "the message"))
        except AnabranchError as error:
            typer.echo(f"error: {error}", err=True)
        else:
            if ids:
                print_line(_show_id(name, as_json))

    async def publish_lines(self, text: bool, ids: bool, as_json: bool) -> None:
        """Publish the lines of standard input until it ends, or until we are interrupted.

        A line that is wrong ends it, too; what stands before that line is published.
        """
        ended = self._ended = ending()
        number = 0
        async with Printer(ended.set) as printer:
            interrupting = asyncio.create_task(self._interrupt(ended, printer))
            try:
                async for line in _lines(ended):
                    number += 1
                    if line.strip():
                        where = f"line {number}"
                        content = _parse(_text(line, number), text, where)
                        key = self.key(content, where)
                        await self._room.acquire()
                        if ended.is_set():
                            break
                        self._begin(self._publish_line(content, key, printer, ids, as_json))
            finally:
                await self._finish()
        interrupting.cancel()

    async def leave(self, network: Network, close_wait_s: float) -> dict[str, Any]:
        """Leave the network; return what became of the messages by then."""
        ended = self._ended or asyncio.Event()
        if ended.is_set():
            close_wait_s = min(close_wait_s, INTERRUPTED_S)
        ended.clear()
        cutting = asyncio.create_task(_cut_short(ended, network))
        unstored = 0
        try:
            await network.close(close_wait_s=close_wait_s)
        except NotStored as error:
            typer.echo(f"error: {error}", err=True)
            unstored = error.messages
        finally:
            cutting.cancel()
        return {"published": self.published, "failed": self.failed, "not_stored": unstored}

    async def _publish_line(
        self, content: Any, key: str | None, printer: Printer, ids: bool, as_json: bool
    ) -> None:
        try:
            name = await self.publish(content, key)
        except (AnabranchError, LocalError) as error:
            await printer.print(f"error: {error}", STDERR)
            return
        if ids:
            await printer.print(_show_id(name, as_json))

    def _begin(self, publishing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(publishing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _finish(self) -> None:
        """Wait for the outcomes that are due, unless and until they are given up."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _interrupt(self, ended: asyncio.Event, printer: Printer) -> None:
        """Who was interrupted does not wait long: neither for room, nor outcomes, nor readers."""
        await ended.wait()
        self._room.release()
        await asyncio.sleep(INTERRUPTED_S)
        printer.give_up()
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            typer.echo(f"error: {error!r}", err=True)  # a mistake of ours


async def _cut_short(ended: asyncio.Event, network: Network) -> None:
    """Whoever is interrupted while it waits for storage nodes waits no longer."""
    await ended.wait()
    network.node.wait_no_longer()


async def _lines(ended: asyncio.Event) -> AsyncIterator[bytes]:
    """Read standard input on a thread of its own, since it may be a file, a pipe or a person."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def put(line: bytes | None) -> None:
        room.acquire()
        with suppress(RuntimeError):  # the loop has ended before its input
            loop.call_soon_threadsafe(lines.put_nowait, line)

    def read() -> None:
        # Not through sys.stdin: Python could not end while a thread holds the lock of its buffer.
        rest = b""
        while data := os.read(0, 1 << 16):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                put(line)
        if rest:
            put(rest)
        put(None)

    threading.Thread(target=read, daemon=True).start()
    stop = asyncio.create_task(ended.wait())
    try:
        while not ended.is_set():
            if lines.empty():
                more = asyncio.create_task(lines.get())
                await asyncio.wait({more, stop}, return_when="FIRST_COMPLETED")
                if not more.done():
                    more.cancel()
                    return
                line = more.result()
            else:
                line = lines.get_nowait()
            room.release()
            if line is None:
                return
            yield line
    finally:
        stop.cancel()
