"""A storage node's pages over real sockets, from a log in memory that tests fill as they like."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from anabranch.core import frames
from anabranch.core.changes import CreateStream, Right, SetPermission
from anabranch.core.encryption import AES_256_GCM
from anabranch.core.frames import FRAME_VERSION, HEAD
from anabranch.core.ids import NodeId, StreamPart, chain_key, number_of, part_key
from anabranch.core.machine import Draft
from anabranch.core.messages.data import Body
from anabranch.core.messages.storage import Entry, FrameName
from anabranch.core.registry import StreamState
from anabranch.core.store import (
    Answer,
    LogQuery,
    LogState,
    LogWrite,
    Order,
    Placed,
    Restart,
    Settle,
)
from anabranch.live.storage.http import StorageHttp
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, PART, SIGNERS, START
from support.waiting import limit

NETWORK = b"n" * 32
NODE = NODES[9]  # the storage node
OWNER_KEY, READER, STRANGER = SIGNERS[0], SIGNERS[1], SIGNERS[2]
BEGAN_MS = int(START * 1000) - 10_000_000
WAIT_S = 20.0
EPOCH = 3

T = TypeVar("T")


class Status(LogState, frozen=True):
    """How a log stands, and who leads it."""

    primary: NodeId | None = None


class Known:
    """A registry that knows one stream."""

    def __init__(self, public: bool) -> None:
        self.state = StreamState(PART.stream, NETWORK)
        self.state.act(CreateStream())
        self.permit(READER.node, Right.SUBSCRIBE)
        if public:
            self.permit(NodeId(bytes(20)), Right.SUBSCRIBE)

    def permit(self, user: NodeId, rights: int) -> None:
        """Let somebody have exactly these rights."""
        self.state.act(SetPermission(user, rights))

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right."""
        return stream == PART.stream and self.state.may(user, right, now)


class Writer:
    """A publisher's chain, whose frames are as tests want them."""

    def __init__(self, place: int = 20, chain: int = 7, part: StreamPart = PART) -> None:
        self.signer = SIGNERS[place]
        self.part = part_key(part)
        self.chain = chain_key(self.signer.node, chain)
        self.previous = 0

    def frame(self, *contents: bytes, at_ms: int = BEGAN_MS, apart_ms: int = 0) -> bytes:
        """Make a frame of messages that were published from a time on."""
        first = max(number_of(at_ms, 0), self.previous + 1)
        numbers = [first + number_of(apart_ms * n, 0) + n for n in range(len(contents))]
        drafts = [(n, Draft(content, n % 3)) for n, content in zip(numbers, contents, strict=True)]
        made = frames.build(self.part, self.chain, self.previous, drafts, self.signer.sign)
        self.previous = numbers[-1]
        return made

    def sealed(
        self, body: bytes, count: int = 1, at_ms: int = BEGAN_MS, span: int | None = None
    ) -> bytes:
        """Make a frame of any body, signed; from its first number to its last it is `span`."""
        first = max(number_of(at_ms, 0), self.previous + 1)
        last = first + (count - 1 if span is None else span)
        head = (FRAME_VERSION, self.part, self.chain, self.previous, first, last)
        unsigned = HEAD.pack(*head, count, len(body)) + body
        self.previous = last
        return unsigned + self.signer.sign(frames.digest(unsigned + bytes(64)))

    def encrypted(self, count: int = 1, at_ms: int = BEGAN_MS) -> bytes:
        """Make a frame that cannot be read without a key."""
        body = Body(b"nobody reads this", AES_256_GCM, b"key")
        return self.sealed(msgspec.msgpack.encode(body), count, at_ms)


def place(made: list[bytes], offset: int = 0, marks: Sequence[int] = ()) -> list[Placed]:
    """Give frames their places."""
    placed = []
    for frame, mark in zip(made, marks or [0] * len(made), strict=True):
        placed.append(Placed(offset, Entry(EPOCH, BEGAN_MS + 5, frame, mark)))
        offset += frames.peek(frame).count
    return placed


class Shelf:
    """A log, and what a server needs to show it."""

    def __init__(self, public: bool = True, part: StreamPart = PART) -> None:
        self.store = MemoryStore()
        self.part = part
        self.registry = Known(public)
        self.now = START
        self.looked: list[LogQuery] = []  # what was looked up
        self.before_find: Callable[[LogQuery], None] = lambda query: None
        self.problem = ""

    def write(self, *writes: LogWrite) -> None:
        """Change the log."""
        self.store.write(writes)

    def put(self, frames_: Sequence[bytes], placed_ms: int = BEGAN_MS, settle: bool = True) -> None:
        """Append frames, and let them be settled."""
        self.write(Order(self.part, EPOCH, placed_ms, tuple(frames_)))
        if settle:
            self.write(Settle(self.part, self.state().length))

    def cut(self, frames_: Sequence[bytes], start: int) -> None:
        """Let the log begin at an offset, with these frames."""
        self.write(Restart(self.part, start, bytes(32)))
        self.put(frames_)

    def damage(self, frame: bytes) -> None:
        """Let a frame be damaged on the disk."""
        head = frames.peek(frame)
        self.store.damage(self.part, FrameName(head.chain, head.last))

    def state(self) -> LogState:
        """Return how the log stands."""
        return next(state for state in self.store.states() if state.part == self.part)

    def status(self, part: StreamPart) -> Status | None:
        """Return how a log stands, if it is here."""
        found = [state for state in self.store.states() if state.part == part]
        if not found:
            return None
        state = found[0]
        return Status(
            part,
            start=state.start,
            length=state.length,
            high=state.high,
            held=state.held,
            epoch=EPOCH,
            primary=NODE,
        )

    async def find(self, query: LogQuery, make: Callable[[Answer], T]) -> T:
        """Look something up, on a thread as a disk does."""
        self.looked.append(query)
        self.before_find(query)
        if self.problem:
            return make(Answer(problem=self.problem))
        return await asyncio.to_thread(lambda: make(self.store.find(query)))

    def http(self, **options: Any) -> StorageHttp:
        """Make the pages."""
        return StorageHttp(
            NODE,
            NETWORK,
            self.registry,
            self.find,
            self.status,
            lambda: [state.part for state in self.store.states()],
            lambda: self.now,
            KEYS.verify,
            **options,
        )


@contextmanager
def serving(shelf: Shelf, **options: Any) -> Iterator[StorageHttp]:
    """Serve the pages on a loop of their own, so that a test can read them as Spark does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(limit(WAIT_S))

    http = shelf.http(**options)
    try:
        do(http.start())
        try:
            yield http
        finally:
            do(http.stop())
    finally:
        do(loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(limit(WAIT_S))
        loop.close()
