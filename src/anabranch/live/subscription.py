"""The reading end of a stream: a bounded mailbox that `async for` empties.

Whoever reads slowly slows nobody: when the mailbox is full the oldest messages are dropped, and
the next message that is read says how many. Links come and go without the reader noticing.

History is another matter: it waits in storage until there is room for it. A page of it is fetched
when the one before has been read, and nothing of it is dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType

import msgspec

from anabranch.core import frames
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Deliver, HistoryEnded, Missed, PageEnded
from anabranch.core.message_key import split_key
from anabranch.core.messages.data import KEYED
from anabranch.core.messages.storage import Selection
from anabranch.core.reader import TOO_MANY
from anabranch.core.resends import DOWN, LATE
from anabranch.live.errors import AnabranchError, HistoryLost
from anabranch.live.handover import Handover
from anabranch.live.message import Gap, Message, decode_content, gap_of, names_of_chain

DEFAULT_BUFFER = 10_000
MAX_BUFFER_BYTES = 64 << 20
MAX_WAITING_GAPS = 1_000  # those that come after are counted, not told


class _Came(msgspec.Struct, gc=False):
    """A frame, when it came, and whether it is history."""

    deliver: Deliver
    at: float
    is_past: bool


# A frame, or what is to be known at that place.
Waiting = _Came | Missed | PageEnded | HistoryEnded


class Plan(msgspec.Struct, frozen=True):
    """How messages are wanted: in order or as they come; what of the past, and if that is all."""

    ordered: bool = False
    history: Selection | None = None
    live: bool = True


AS_THEY_COME = Plan()

UNREAD = (
    "some messages cannot be opened, since nobody who is there gave their keys: start their "
    "publisher, or a subscriber who has read them"
)

_WHY = {
    DOWN: "none of its storage nodes can be reached",
    LATE: "none of its storage nodes answered in time",
    "unpermitted": "its storage nodes do not know that you may read it",
    "not-stored": "its storage nodes do not keep it yet",
    "busy": "its storage nodes have too much to do: try again",
}


class Subscription:
    """Messages of some parts of a stream, from the moment the context is entered.

        async with stream.subscribe() as messages:
            async for message in messages:
                print(message.content)

    `missed` counts what was dropped because it was not read in time; `unreadable` counts messages
    that cannot be opened: their key did not come, or their publisher made them so. `gaps` counts
    the places where messages did not come and could not be had from anybody; the next message
    tells which (`message.gaps`). `problem` says why history is not complete, if it is not.
    """

    __slots__ = (
        *("_arriving", "_bound", "_by_time", "_discarding", "_enter", "_entered", "_failure"),
        *("_frames", "_gaps", "_has_reader", "_leave", "_missed_since", "_on_missed", "_open"),
        *(
            "_pages",
            "_past",
            "_problems",
            "_ready",
            "_waiting_bytes",
            "_waiting_gaps",
            "_waiting_messages",
        ),
        *("gaps", "lost", "missed", "news", "parts", "plan", "problem", "reads", "tickets"),
        *("unreadable",),
        "__weakref__",
    )

    def __init__(
        self,
        parts: tuple[StreamPart, ...],
        enter: Callable[["Subscription"], None],
        leave: Callable[["Subscription"], None],
        buffer: int = DEFAULT_BUFFER,
        on_missed: Callable[[StreamPart, int], None] | None = None,
        reads: bool = True,
        plan: Plan = AS_THEY_COME,
    ) -> None:
        """One that does not read keeps nothing of what comes, and never has the keys to open it."""
        if buffer < 1:
            raise LocalError(f"a buffer of {buffer} messages holds nothing: give 1 or more")
        self.parts = parts
        self.missed = 0
        self.unreadable = 0
        self.gaps = 0
        self.problem = ""
        self.lost: dict[int, list[tuple[int, int]]] = {}  # by partition: first, behind the last
        self.plan = plan
        self.tickets: dict[int, StreamPart] = {}  # under which the parts are read in order
        self._past: dict[int, Callable[[int], None]] = {}  # those whose history is being read,
        self._arriving: dict[int, None] = {}  # and those of which more is to come
        self._problems: dict[int, str] = {}  # why the history of a partition is not complete
        self._by_time = plan.history is not None and plan.history.by_number
        self._pages: dict[int, list[_Came]] = {}  # in the order of time
        self._gaps: list[Missed] = []  # before the next message
        self._waiting_gaps = 0  # these, and those among the frames
        self._enter, self._leave = enter, leave
        self._on_missed = on_missed
        self._bound = buffer
        self._frames: deque[Waiting] = deque()
        self._waiting_messages = 0
        self._waiting_bytes = 0
        self._ready: deque[Message] = deque()  # of the frame that is being read
        self._missed_since = 0  # dropped since the last message that was read
        self.news: Handover | None = None  # where the reader waits
        self._has_reader = False  # that waits, or is about to go on
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
            if self.news is not None:
                self.news.pass_on_soon()

    def fail(self, error: AnabranchError) -> None:
        """Let the reader know that nothing will come any more, after what has come."""
        self._failure = error
        self.close()

    @property
    def is_plain(self) -> bool:
        """Whether it takes messages as they come, and nothing of the past."""
        return self.plan == AS_THEY_COME

    @property
    def waiting(self) -> int:
        """How many messages have come and have not been read."""
        return self._waiting_messages + len(self._ready)

    # --- The writing side -----------------------------------------------------------------

    def opened(self, ticket: int, part: StreamPart, drained: Callable[[int], None]) -> None:
        """Learn under which ticket a part is read; `drained` asks for the next page of the past."""
        self.tickets[ticket] = part
        if self.plan.history is not None:
            self._past[ticket] = drained
            self._arriving[ticket] = None

    def put(self, deliver: Deliver, at: float) -> None:
        """Take a frame; drop the oldest if there is no room."""
        if self._discarding:
            return
        is_past = deliver.to in self._arriving
        if is_past and self._by_time:
            self._pages.setdefault(deliver.to, []).append(_Came(deliver, at, True))
            return
        self._frames.append(_Came(deliver, at, is_past))
        if not is_past:
            self._waiting_messages += deliver.head.count
            self._waiting_bytes += len(deliver.frame)
            if self._waiting_messages > self._bound or self._waiting_bytes > MAX_BUFFER_BYTES:
                self._make_room()

    def put_gap(self, missed: Missed) -> None:
        """Take the word that messages did not come: whoever reads hears it with the next one."""
        self.gaps += 1
        last = self._frames[-1] if self._frames else None
        if self._discarding or (type(last) is Missed and _join(last, missed)):
            return
        if self._waiting_gaps < MAX_WAITING_GAPS:
            self._waiting_gaps += 1
            self._frames.append(missed)

    def put_end(self, end: PageEnded | HistoryEnded) -> None:
        """Take the end of a page, or of a history: it counts when all before it has been read."""
        if type(end) is HistoryEnded and end.problem == TOO_MANY:
            self.fail(AnabranchError(f"{TOO_MANY}: close some of them first"))
            return
        # Keys come in any order, and frames with them: the page is whole now, and in order.
        page = self._pages.pop(end.to, [])
        page.sort(key=lambda came: (came.deliver.head.first, came.deliver.head.chain))
        self._frames.extend(page)
        self._frames.append(end)
        if type(end) is HistoryEnded:
            self._arriving.pop(end.to, None)

    def _make_room(self) -> None:
        """Drop the oldest of what came live, and nothing of what is history."""
        while self._waiting_messages > self._bound or self._waiting_bytes > MAX_BUFFER_BYTES:
            at = next((i for i, each in enumerate(self._frames) if _is_live(each)), None)
            if at is None or at == len(self._frames) - 1:
                return
            oldest = self._frames[at]
            assert type(oldest) is _Came
            del self._frames[at]
            self._drop(oldest.deliver)

    def _drop(self, oldest: Deliver) -> None:
        count = oldest.head.count
        self._waiting_messages -= count
        self._waiting_bytes -= len(oldest.frame)
        self.missed += count
        self._missed_since += count
        if self._on_missed is not None:
            self._on_missed(oldest.part, count)

    def wake(self) -> None:
        """Let who waits read what was put here, at once if that can be."""
        if self.news is not None:
            self.news.pass_on()

    async def discard(self) -> None:
        """Read nothing and keep nothing until the subscription ends: for who only carries."""
        news = self._begin_to_wait()
        self._discarding = True
        self._frames.clear()
        self._ready.clear()
        self._gaps.clear()
        self._waiting_messages = self._waiting_bytes = self._waiting_gaps = 0
        try:
            while self._open:
                await news.wait()
        finally:
            self._has_reader = False
        if self._failure is not None:
            raise self._failure

    # --- The reading side -----------------------------------------------------------------

    def __aiter__(self) -> "Subscription":
        if not self._entered:
            raise LocalError(
                "enter it first: async with stream.subscribe() as messages (or stream.history())"
            )
        if not self.reads:
            raise LocalError("this carries messages and cannot read them: use stream.subscribe()")
        return self

    async def __anext__(self) -> Message:
        """Return the next message; who gives up waiting for it may ask again."""
        while not self._ready:
            if self._frames:
                waiting = self._frames.popleft()
                if isinstance(waiting, _Came):
                    self._open_frame(waiting.deliver, waiting.at, waiting.is_past)
                else:
                    self._note(waiting)
            elif self._open:
                news = self._begin_to_wait()
                try:
                    await news.wait()
                finally:
                    self._has_reader = False
            elif self._failure is not None:
                raise self._failure
            else:
                raise StopAsyncIteration
        return self._ready.popleft()

    def _begin_to_wait(self) -> Handover:
        if self._has_reader:
            raise LocalError("two readers wait on one subscription: give each its own")
        if self.news is None:
            self.news = Handover(asyncio.get_running_loop())
        self._has_reader = True
        return self.news

    def _note(self, waiting: Missed | PageEnded | HistoryEnded) -> None:
        """Take note of what is to be known before the next message."""
        if type(waiting) is Missed:
            if self._gaps and _join(self._gaps[-1], waiting):
                self._waiting_gaps -= 1
            else:
                self._gaps.append(waiting)
        elif type(waiting) is PageEnded:
            if waiting.to in self._past:
                self._past[waiting.to](waiting.to)
        else:
            assert type(waiting) is HistoryEnded
            self._end_history(waiting)

    def _end_history(self, ended: HistoryEnded) -> None:
        del self._past[ended.to]
        partition = self.tickets[ended.to].partition
        if ended.lost:
            self.lost[partition] = [(span.start, span.end) for span in ended.lost]
        if ended.problem:
            self._problems[partition] = _WHY.get(ended.problem, ended.problem)
        self.problem = self._said()
        if not self.plan.live and not self._past:
            if self.problem:
                text = f"the history is not complete: {self.problem}"
                self._failure = HistoryLost(text, self.lost)
            self.close()

    def _said(self) -> str:
        """Say why the history is not complete, as far as it has ended."""
        problems = self._problems
        if len(self.parts) == 1 or len(set(problems.values())) == 1 < len(problems):
            said = list(dict.fromkeys(problems.values()))
        else:
            said = [f"partition {at}: {why}" for at, why in sorted(problems.items())]
        return "; ".join([*said, UNREAD] if self.unreadable else said)

    def _open_frame(self, deliver: Deliver, at: float, is_past: bool) -> None:
        head, part = deliver.head, deliver.part
        if not is_past:
            self._waiting_messages -= head.count
            self._waiting_bytes -= len(deliver.frame)
        try:
            opened = frames.messages(deliver.frame, deliver.key, head)
        except RemoteError:  # its publisher signed it so; one of them must not stop the stream
            self.unreadable += head.count
            return
        after, upto = deliver.after, deliver.upto
        if deliver.skip or deliver.most < head.count or not after < head.first <= head.last <= upto:
            chosen = opened[deliver.skip : deliver.most]
            opened = [message for message in chosen if after < message.number <= upto]
        if not opened:  # what is to be told is told with the next message that there is
            return
        publisher, chain = names_of_chain(head.chain)
        missed, self._missed_since = self._missed_since, 0
        gaps: tuple[Gap, ...] = ()
        if self._gaps:
            gaps, self._gaps = tuple(map(gap_of, self._gaps)), []
            self._waiting_gaps -= len(gaps)
        for message in opened:
            key, data, content_type = None, message.content, message.content_type
            if content_type >= KEYED:
                key, data, content_type = split_key(data, content_type)
            content, kind, problem = decode_content(data, content_type)
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
                    gaps,
                    key,
                    deliver.late,
                )
            )
            missed, gaps = 0, ()


def _is_live(waiting: Waiting) -> bool:
    return type(waiting) is _Came and not waiting.is_past


def _join(before: Missed, after: Missed) -> bool:
    """Make one gap of two of a chain between which nothing is read, if it is one reason."""
    if (before.to, before.chain, before.reason) != (after.to, after.chain, after.reason):
        return False
    before.after = min(before.after, after.after)
    before.before = max(before.before, after.before)
    return True
