"""The reading end of a stream: a bounded mailbox that `async for` empties.

Whoever reads slowly slows nobody: when the mailbox is full the oldest messages are dropped, and
the next message that is read says how many. Links come and go without the reader noticing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType

from anabranch.core import frames
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Deliver
from anabranch.live.errors import AnabranchError
from anabranch.live.message import Message, decode_content, names_of

DEFAULT_BUFFER = 10_000
MAX_BUFFER_BYTES = 64 << 20


class Subscription:
    """Messages of some parts of a stream, from the moment the context is entered.

        async with stream.subscribe() as messages:
            async for message in messages:
                print(message.content)

    `missed` counts what was dropped because it was not read in time; `unreadable` counts messages
    that cannot be opened: their key did not come, or their publisher made them so.
    """

    def __init__(
        self,
        parts: tuple[StreamPart, ...],
        enter: Callable[["Subscription"], None],
        leave: Callable[["Subscription"], None],
        buffer: int = DEFAULT_BUFFER,
        on_missed: Callable[[StreamPart, int], None] | None = None,
        reads: bool = True,
    ) -> None:
        """One that does not read keeps nothing of what comes, and never has the keys to open it."""
        if buffer < 1:
            raise LocalError(f"a buffer of {buffer} messages holds nothing: give 1 or more")
        self.parts = parts
        self.missed = 0
        self.unreadable = 0
        self._enter, self._leave = enter, leave
        self._on_missed = on_missed
        self._bound = buffer
        self._frames: deque[tuple[Deliver, float]] = deque()
        self._waiting_messages = 0
        self._waiting_bytes = 0
        self._ready: deque[Message] = deque()  # of the frame that is being read
        self._missed_since = 0  # dropped since the last message that was read
        self._news: asyncio.Future[None] | None = None
        self._entered = False
        self._open = False
        self.reads = reads
        self._discarding = not reads
        self._failure: AnabranchError | None = None

    async def __aenter__(self) -> "Subscription":
        if not self._open:
            self._open = True
            try:
                self._enter(self)
            except BaseException:
                self._open = False
                raise
            self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Want no more messages; an `async for` under way ends."""
        if self._open:
            self._open = False
            self._leave(self)
            self._wake()

    def fail(self, error: AnabranchError) -> None:
        """Let the reader know that nothing will come any more, after what has come."""
        self._failure = error
        self.close()

    @property
    def waiting(self) -> int:
        """How many messages have come and have not been read."""
        return self._waiting_messages + len(self._ready)

    # --- The writing side -----------------------------------------------------------------

    def put(self, deliver: Deliver, at: float) -> None:
        """Take a frame; drop the oldest if there is no room."""
        if self._discarding:
            return
        self._frames.append((deliver, at))
        self._waiting_messages += deliver.head.count
        self._waiting_bytes += len(deliver.frame)
        while len(self._frames) > 1 and (
            self._waiting_messages > self._bound or self._waiting_bytes > MAX_BUFFER_BYTES
        ):
            self._drop(self._frames.popleft()[0])
        if self._news is not None:
            self._wake()

    def _drop(self, oldest: Deliver) -> None:
        count = oldest.head.count
        self._waiting_messages -= count
        self._waiting_bytes -= len(oldest.frame)
        self.missed += count
        self._missed_since += count
        if self._on_missed is not None:
            self._on_missed(oldest.part, count)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def discard(self) -> None:
        """Read nothing and keep nothing until the subscription ends: for who only carries."""
        self._refuse_a_second_reader()
        self._discarding = True
        self._frames.clear()
        self._ready.clear()
        self._waiting_messages = self._waiting_bytes = 0
        while self._open:
            await self._wait_for_news()
        if self._failure is not None:
            raise self._failure

    # --- The reading side -----------------------------------------------------------------

    def __aiter__(self) -> "Subscription":
        if not self._entered:
            raise LocalError("enter the subscription first: async with stream.subscribe() as ...")
        if not self.reads:
            raise LocalError("this carries messages and cannot read them: use stream.subscribe()")
        return self

    async def __anext__(self) -> Message:
        """Return the next message; who gives up waiting for it may ask again."""
        while not self._ready:
            if self._frames:
                self._open_next()
            elif self._open:
                await self._wait_for_news()
            elif self._failure is not None:
                raise self._failure
            else:
                raise StopAsyncIteration
        return self._ready.popleft()

    async def _wait_for_news(self) -> None:
        self._refuse_a_second_reader()
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _refuse_a_second_reader(self) -> None:
        if self._news is not None:
            raise LocalError("two readers wait on one subscription: give each its own")

    def _open_next(self) -> None:
        deliver, at = self._frames.popleft()
        head, part = deliver.head, deliver.part
        self._waiting_messages -= head.count
        self._waiting_bytes -= len(deliver.frame)
        try:
            opened = frames.messages(deliver.frame, deliver.key)
        except RemoteError:  # its publisher signed it so; one of them must not stop the stream
            self.unreadable += head.count
            return
        publisher, chain = names_of(head)
        missed, self._missed_since = self._missed_since, 0
        for message in opened:
            content, kind, problem = decode_content(message.content, message.content_type)
            self._ready.append(
                Message(
                    content,
                    part.stream,
                    part.partition,
                    publisher,
                    chain,
                    message.number,
                    kind,
                    deliver.hops,
                    at * 1000,
                    missed,
                    problem,
                )
            )
            missed = 0
