"""`anabranch publish` and `anabranch subscribe`: JSON lines in and out; commands compose."""

import asyncio
import base64
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from anabranch.cli.console import fail, handled, print_json, print_line
from anabranch.cli.options import Address, AsJson, KeyFile, Profile, network_of
from anabranch.core.errors import LocalError
from anabranch.live.errors import AnabranchError
from anabranch.live.loop import ending, run
from anabranch.live.message import Message
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
        str | None, typer.Option(help="The JSON field that chooses the partition, e.g. id.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="The partition, for all messages.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print each message's id.")] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds that a message may wait for a neighbour.")
    ] = 60.0,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Publish one message, or every line of standard input."""

    async def main() -> dict[str, Any]:
        began = time.perf_counter()
        async with network_of(profile, address, key, patience_s=patience) as network:
            opened = await network.stream(stream)
            publisher = _Publisher(opened, key_field, partition, ids, as_json)
            if message is not None:
                content = _parse(message, text, "the message")
                await publisher.publish(content, publisher.key(content, "the message"))
            else:
                await publisher.publish_lines(text)
            seconds = round(time.perf_counter() - began, 3)
            row = {"published": publisher.published, "failed": publisher.failed}
            return {**row, "seconds": seconds, "cpu_ms": cpu_ms()}

    if key_field is not None and partition is not None:
        fail("--key-field and --partition both choose the partition: leave one of them out")
    if patience <= 0:
        fail(f"--patience {patience:g}: give more than 0")
    row = run(main())
    if as_json:
        print_json(row)
    elif message is None or row["failed"]:
        typer.echo(f"{row['published']} published, {row['failed']} failed", err=True)
    if row["failed"]:
        raise typer.Exit(1)


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
        partition: int | None,
        ids: bool,
        as_json: bool,
    ) -> None:
        self.published = self.failed = 0
        self._stream = stream
        self._key_field = key_field
        self._partition = partition
        self._ids = ids
        self._as_json = as_json
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()

    def key(self, content: Any, where: str) -> str | None:
        """Return what chooses the partition of a message."""
        if self._key_field is None:
            return None
        if not isinstance(content, dict) or self._key_field not in content:
            raise LocalError(f"{where} has no field {self._key_field!r}: {content!r:.100}")
        return str(content[self._key_field])

    async def publish(self, content: Any, key: str | None) -> None:
        """Publish one message and wait for its outcome."""
        try:
            name = await self._stream.publish(content, key=key, partition=self._partition)
        except AnabranchError as error:
            self.failed += 1
            typer.echo(f"error: {error}", err=True)
            return
        self.published += 1
        if self._ids:
            print_json({"id": str(name)}) if self._as_json else print_line(str(name))

    async def publish_lines(self, text: bool) -> None:
        """Publish the lines of standard input until it ends, or until we are interrupted.

        A line that is wrong ends it, too; what stands before that line is published.
        """
        ended = ending()
        number = 0
        try:
            async for line in _lines(ended):
                number += 1
                if line.strip():
                    where = f"line {number}"
                    content = _parse(_text(line, number), text, where)
                    await self._begin(content, self.key(content, where))
        finally:
            await self._finish(INTERRUPTED_S if ended.is_set() else None)

    async def _begin(self, content: Any, key: str | None) -> None:
        await self._room.acquire()
        task = asyncio.create_task(self.publish(content, key))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _finish(self, timeout_s: float | None) -> None:
        """Wait for the outcomes that are due; who was interrupted does not wait long."""
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=timeout_s)
            self.failed += len(pending)
            for task in pending:
                task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed += 1
            typer.echo(f"error: {error}", err=True)


async def _lines(ended: asyncio.Event) -> AsyncIterator[bytes]:
    """Read standard input on a thread of its own, since it may be a file, a pipe or a person."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def put(line: bytes | None) -> None:
        room.acquire()
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
        while True:
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


# --- subscribe ------------------------------------------------------------------------------


@handled()
def subscribe(
    stream: Name,
    count: Annotated[int | None, typer.Option(help="End after so many messages.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option(help="Only this partition; may be repeated.")
    ] = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a stream, one a line: their contents or, with --json, all of them."""

    async def main() -> None:
        ended = ending()
        async with network_of(profile, address, key) as network:
            opened = await network.stream(stream)
            async with opened.subscribe(partition or None) as messages:
                asyncio.get_running_loop().create_task(_close_at(ended, messages.close))
                left = count
                async for message in messages:
                    _print(message, as_json)
                    if left is not None:
                        left -= 1
                        if left <= 0:
                            break
            ended.set()

    if count is not None and count < 1:
        fail(f"--count {count}: give 1 or more")
    run(main())


async def _close_at(ended: asyncio.Event, close: Any) -> None:
    await ended.wait()
    close()


def _print(message: Message, as_json: bool) -> None:
    if message.missed:
        typer.echo(f"missed {message.missed} messages: this reader is too slow", err=True)
    content = message.content
    if message.content_type == "bytes":
        content = base64.b64encode(content).decode()
    if not as_json:
        print_line(content if isinstance(content, str) else json.dumps(content))
        return
    print_json(
        {
            "stream": message.stream,
            "partition": message.partition,
            "timestamp_ms": message.timestamp_ms,
            "sequence": message.sequence,
            "publisher": message.publisher,
            "chain": message.chain,
            "content_type": message.content_type,
            "content": content,
            "hops": message.hops,
            "delay_ms": round(message.delay_ms, 3),
            "missed": message.missed,
        }
    )
