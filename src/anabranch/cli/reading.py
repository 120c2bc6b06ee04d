"""`anabranch subscribe` and `anabranch resend`: messages out, one a line; commands compose."""

import asyncio
import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
import typer

from anabranch.cli.console import STDERR, Printer, fail, handled
from anabranch.cli.messages import Name
from anabranch.cli.options import Address, AsJson, Data, KeyFile, Profile, network_of
from anabranch.cli.times import parse_time
from anabranch.core.key_asking import NO_KEY
from anabranch.core.machine import Notice
from anabranch.live.client import Network
from anabranch.live.loop import ending, run
from anabranch.live.message import Message
from anabranch.live.stream import Stream
from anabranch.live.subscription import Subscription

LAST_LINES_S = 1.0  # how long what has come may take to be printed after Ctrl-C

Partitions = Annotated[
    list[int] | None, typer.Option("--partition", help="Only this partition; may be repeated.")
]


@handled()
def subscribe(
    stream: Name,
    count: Annotated[int | None, typer.Option(help="End after so many messages.")] = None,
    last: Annotated[
        int | None, typer.Option(help="Begin with the last so many that are stored.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Begin at a time: 10m, 2h, 2026-11-16T08:00Z, or ms.")
    ] = None,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="As they come, with nothing asked for again.")
    ] = False,
    partition: Partitions = None,
    data: Data = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a stream, one a line: their contents or, with --json, all of them."""
    if count is not None and count < 1:
        fail(f"--count {count}: give 1 or more")
    begin = None if since is None else parse_time(since)

    def read(opened: Stream) -> Subscription:
        return opened.subscribe(partition or None, last=last, since=begin, ordered=not unordered)

    _run(stream, read, count, partial(network_of, profile, address, key, data=data), as_json)


@handled()
def resend(
    stream: Name,
    last: Annotated[int | None, typer.Option(help="Only the last so many.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="From a time on: 10m, 2h, 2026-11-16, or ms.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Up to a time, written likewise.")] = None,
    from_offset: Annotated[int | None, typer.Option(help="From an offset on.")] = None,
    to_offset: Annotated[int | None, typer.Option(help="Up to an offset, without it.")] = None,
    publisher: Annotated[str | None, typer.Option(help="Only what this address published.")] = None,
    chain: Annotated[str | None, typer.Option(help="Only this chain of the publisher's.")] = None,
    partition: Partitions = None,
    data: Data = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Print what is stored of a stream, one message a line, and end."""
    times = [None if each is None else parse_time(each) for each in (start, end)]
    offsets = None
    if from_offset is not None or to_offset is not None:
        offsets = (from_offset or 0, to_offset)

    def read(opened: Stream) -> Subscription:
        return opened.history(
            *times,
            partitions=partition or None,
            last=last,
            publisher=publisher,
            chain=chain,
            offsets=offsets,
        )

    _run(stream, read, None, partial(network_of, profile, address, key, data=data), as_json)


def _run(
    stream: str,
    read: Callable[[Stream], Subscription],
    count: int | None,
    connecting: Callable[[], Network],
    as_json: bool,
) -> None:
    """Print messages until there are no more, or enough, or until we are interrupted."""

    async def main() -> None:
        ended = ending()
        # What is left to print is printed when we have left the network, which need not wait.
        async with Printer(ended.set) as printer, connecting() as network:
            opened = await network.stream(stream)
            network.node.watch(_say_unread)
            async with read(opened) as messages:
                interrupting = asyncio.create_task(_interrupt(ended, messages, printer))
                left, told = count, ""
                async for message in messages:
                    told = await _say_incomplete(messages, told, printer)
                    await _print(message, as_json, printer)
                    if left is not None:
                        left -= 1
                        if left <= 0:
                            break
                await _say_incomplete(messages, told, printer)
        interrupting.cancel()

    run(main())


def _say_unread(notice: Notice) -> None:
    if notice.kind == NO_KEY:
        reason = {
            "unpermitted": "their publisher has not heard that you may read them",
            "unknown-key": "their publisher has that key no more",
        }.get(notice.detail, notice.detail)
        typer.echo(f"some messages of {notice.part} cannot be opened: {reason}", err=True)


async def _say_incomplete(messages: Subscription, told: str, printer: Printer) -> str:
    """Say once, and before what is new, that not all of the past could be had."""
    if messages.problem != told:
        await printer.print(f"the past is incomplete: {messages.problem}", STDERR)
    return messages.problem


async def _interrupt(ended: asyncio.Event, messages: Subscription, printer: Printer) -> None:
    """Let what has come be printed, if somebody reads it now."""
    await ended.wait()
    messages.close()
    await asyncio.sleep(LAST_LINES_S)
    printer.give_up()


async def _print(message: Message, as_json: bool, printer: Printer) -> None:
    if message.missed:
        missed = f"missed {message.missed} messages: this reader is too slow"
        await printer.print(missed, STDERR)
    for gap in message.gaps:
        await printer.print(
            f"messages of {gap.publisher} before {message.timestamp_ms} are missing: {gap.reason}",
            STDERR,
        )
    content = message.content
    if message.content_type == "bytes":
        content = base64.b64encode(content).decode()
    if not as_json:
        await printer.print(
            content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        )
        return
    await printer.print(
        json.dumps(
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
                "late": message.late,
                "gap": None if message.gap is None else msgspec.to_builtins(message.gap),
                **shown_key(message.key),
            }
        )
    )


def shown_key(key: bytes | None) -> dict[str, str]:
    """Show the key of a message, if it has one, by a name that says how."""
    if key is None:
        return {}
    try:
        return {"key": key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": base64.b64encode(key).decode()}
