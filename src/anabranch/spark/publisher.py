"""Publishes what a task writes, so that a second attempt publishes nothing else.

A worker's process has one node for each network and key, which lives in a thread of its own from
the first task on. A task first asks the storage nodes what they have of its chains since its batch
began. What is there is compared with what it would publish, and the rest is published under numbers
that follow from the rows' positions, frame by frame, until enough storage nodes hold it.
"""

import asyncio
import atexit
import threading
import time
from bisect import bisect_left
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import SEQUENCE_BITS
from anabranch.live.client import Network
from anabranch.live.errors import AnabranchError, Closed, NotPublished, NotStored
from anabranch.live.message import Message, decode_content
from anabranch.live.numbered import Numbered
from anabranch.live.stream import Stream
from anabranch.spark.access import Access, open_network
from anabranch.spark.epochs import Epoch, Numbering
from anabranch.spark.rows import Row, cut

FRAMES_AT_ONCE = 32  # of one task, that wait for their receipts
ATTEMPTS = 3  # to have a frame stored, before the task fails
LINGER_S = 5.0  # how long others may ask for the key of what was written last
MAX_NODES = 4  # of one process; beyond that the oldest leaves
START_S = 60.0

T = TypeVar("T")


class Target(msgspec.Struct, frozen=True):
    """Where rows go: a stream, by whose key, as which type, and how many are to hold them."""

    access: Access
    stream: str
    content_type: int
    copies: int


class Written(msgspec.Struct, frozen=True):
    """What became of a task's rows, and how far its chains have come."""

    published: int
    found: int  # stored already, by an earlier attempt
    stands: dict[str, int]  # the last number of each chain


# --- The node of this process ---------------------------------------------------------------


class ResidentNode:
    """A node in a thread of its own, for as long as this process lives."""

    def __init__(self, access: Access) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.network: Network = open_network(access)
        try:
            self.run(self.network.__aenter__(), START_S)
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Do something on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        """Leave the network."""
        try:
            self.run(self.network.close(), START_S)
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)


_nodes: dict[Access, ResidentNode] = {}


def node_of(access: Access) -> ResidentNode:
    """Return the node of this process in a network; the first who asks makes it join."""
    node = _nodes.get(access)
    if node is not None and node.network.node.failed.is_set():
        _drop(access)
        node = None
    if node is None:
        node = _nodes[access] = ResidentNode(access)
        if len(_nodes) > MAX_NODES:
            _drop(next(iter(_nodes)))
    return node


def _drop(access: Access) -> None:
    """Let a node leave, so that its thread ends; why it failed was said to who used it."""
    node = _nodes.pop(access, None)
    if node is not None:
        with suppress(AnabranchError, LocalError, TimeoutError):
            node.close()


def close_nodes() -> None:
    """Let all nodes of this process leave."""
    while _nodes:
        _nodes.popitem()[1].close()


atexit.register(close_nodes)


# --- Writing --------------------------------------------------------------------------------


async def open_target(network: Network, target: Target) -> Stream:
    """Find the stream; whatever keeps us from writing there is said in one sentence."""
    stream = await network.stream(target.stream)
    for right in ("publish", "subscribe"):
        if not stream.may(right):
            why = "" if right == "publish" else ", to see what of a batch is there already"
            raise LocalError(
                f"{network.me} may not {right} to {stream.id}, and must{why}: its owner can permit "
                f"it with `anabranch stream grant {stream.id} {network.me} {right}`"
            )
    stored = len(stream.info()["storage"])
    if not stored:
        raise LocalError(
            f"no storage node keeps {stream.id}, and only who can look there writes nothing "
            f"twice: name some with `anabranch stream edit {stream.id} --storage ...`"
        )
    if target.copies > stored:
        raise LocalError(
            f"the option copies is {target.copies}: {stream.id} has {stored} storage nodes"
        )
    return stream


async def write_rows(
    network: Network, target: Target, epoch: Epoch, task: int, rows: dict[int, list[Row]]
) -> Written:
    """Publish the rows of each partition, but for those that are stored already."""
    stream = await open_target(network, target)
    parts = [
        _Part(stream, target, partition, epoch.chain(task, stream.id, partition), epoch, of_part)
        for partition, of_part in sorted(rows.items())
    ]
    await asyncio.gather(*(part.look() for part in parts))
    room = asyncio.Semaphore(FRAMES_AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part.publish(room, tasks))
    return Written(
        sum(part.published for part in parts),
        sum(len(part.found) for part in parts),
        {f"{part.chain:016x}": part.last for part in parts},
    )


class _Part:
    """The rows of one task for one partition of the stream: a chain, in frames."""

    def __init__(
        self,
        stream: Stream,
        target: Target,
        partition: int,
        chain: int,
        epoch: Epoch,
        rows: list[Row],
    ) -> None:
        self.chain = chain
        self.found: dict[int, int] = {}  # numbers of what is stored, by position
        self.published = 0
        self._stream = stream
        self._target = target
        self._partition = partition
        self._numbering: Numbering = epoch.numbering(chain)
        self._rows = rows
        self.last = self._numbering.previous
        self._step = 0

    async def look(self) -> None:
        """Find out what an earlier attempt has stored, and whether it meant the same."""
        now_ms = self._now_ms()
        pause_ms = self._numbering.pause_ms(now_ms)
        await asyncio.sleep(pause_ms / 1000)
        self._step = self._numbering.step(now_ms + pause_ms)
        first, partition = self._numbering.base, self._partition
        for message in await self._stream.find_numbered(self.chain, first, partition=partition):
            position = self._numbering.position(message.number)
            if position >= len(self._rows) or not self._is_same(self._rows[position], message):
                raise self._otherwise()
            self.found[position] = message.number

    async def publish(self, room: asyncio.Semaphore, tasks: asyncio.TaskGroup) -> None:
        """Publish what is not stored, in order; the frames of an attempt are those of another."""
        sent, pending = self.last, set[asyncio.Task[None]]()
        stored = sorted(self.found.values())
        for start, end in cut(self._rows):
            await room.acquire()
            if not self._is_in_step():
                # Another attempt may be at it too: what it could do under the numbers until now
                # it has done when we look.
                while pending:
                    await asyncio.wait(pending)
                await self.look()
                stored = sorted(self.found.values())
            known = [self.found[at] for at in range(start, end) if at in self.found]
            if known:
                room.release()
                if len(known) < end - start:
                    raise self._otherwise()
                self.last = max(self.last, known[-1])
                continue
            number = self._numbering.number(start, self._step)
            messages = [
                Numbered(number + at, row.value, self._target.content_type, row.key)
                for at, row in enumerate(self._rows[start:end])
            ]
            # Rows behind a hole may be stored already: if time has passed, with earlier numbers.
            before = bisect_left(stored, number)
            previous = max(sent, stored[before - 1] if before else 0)
            task = tasks.create_task(self._have_stored(room, previous, messages))
            pending.add(task)
            task.add_done_callback(pending.discard)
            sent = messages[-1].number
            self.last = max(self.last, sent)
            self.published += len(messages)

    async def _have_stored(
        self, room: asyncio.Semaphore, previous: int, messages: list[Numbered]
    ) -> None:
        """Have a frame stored; it is the same frame each time."""
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._stream.publish_numbered(
                        self.chain,
                        previous,
                        messages,
                        self._target.copies,
                        partition=self._partition,
                    )
                except (NotPublished, NotStored):
                    if attempt == ATTEMPTS or not self._is_in_step():
                        raise
                else:
                    return
        finally:
            room.release()

    def _is_in_step(self) -> bool:
        """Tell whether something can be begun under the numbers of the step that we are in."""
        now_ms = self._now_ms()
        is_ending = self._numbering.pause_ms(now_ms) > 0
        return self._numbering.step(now_ms) == self._step and not is_ending

    def _now_ms(self) -> int:
        return max(int(time.time() * 1000), self.last >> SEQUENCE_BITS)

    def _is_same(self, row: Row, message: Message) -> bool:
        content, *_ = decode_content(row.value, self._target.content_type)
        return bool(message.content == content and message.key == row.key)

    def _otherwise(self) -> LocalError:
        return LocalError(
            f"an earlier attempt at this batch wrote other rows to {self._stream.id}: the query "
            "must give the same rows when it is run again (no random values, no time of day); if "
            "only their order differs, name columns in the option orderBy"
        )


def write(
    target: Target, epoch: Epoch, task: int, rows: dict[int, list[Row]], lingers: bool
) -> Written:
    """Publish a task's rows through the node of this process, and wait until they are stored."""
    node = node_of(target.access)

    async def work() -> Written:
        written = await write_rows(node.network, target, epoch, task, rows)
        if lingers and written.published:
            live = node.network.node
            await live.linger(live.driver.now() + LINGER_S)
        return written

    try:
        return node.run(work())
    except ExceptionGroup as group:
        raise _first_of(group) from group
    except Closed:
        _drop(target.access)
        raise


def _first_of(group: ExceptionGroup) -> Exception:
    found: Exception = group
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, LocalError | AnabranchError) else group
