"""Where one task waits for messages: it goes on at once, and not in the loop's next turn.

Where many sockets are ready, a loop reads all of them before any task has its turn; with several
nodes in a process that is a third of a message's delay. So who waits here is not put at the end
of the loop's queue, unless another task is running just now: none can run within another.

A task waits for whatever yields an object that looks like a future (`asyncio.isfuture`). This one
can be waited for again and again, by one task at a time.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any

Waiter = Callable[[Any], object]  # goes on with what it has waited for


class Handover:
    """Waits for something to be there."""

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_context",
        "_loop",
        "_message",
        "_waiter",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._waiter: Waiter | None = None
        self._context: Context | None = None
        self._cancelled = False
        self._message: Any = None

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits here."""
        return self._waiter is not None

    def pass_on(self) -> None:
        """Let who waits go on, at once if that can be."""
        if self._waiter is None:
            return
        if asyncio.current_task(self._loop) is not None:
            self.pass_on_soon()
            return
        waiter, context = self._waiter, self._context
        assert context is not None
        self._waiter = self._context = None
        context.run(waiter, self)

    def pass_on_soon(self) -> None:
        """Let who waits go on in the loop's next turn."""
        if self._waiter is not None:
            waiter, context = self._take()
            self._loop.call_soon(waiter, self, context=context)

    def _take(self) -> tuple[Waiter, Context]:
        waiter, context = self._waiter, self._context
        assert waiter is not None
        assert context is not None
        self._waiter = self._context = None
        return waiter, context

    # --- As a task sees it ----------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return where the task runs that may wait here."""
        return self._loop

    def add_done_callback(self, call: Waiter, *, context: Context) -> None:
        """Let a task wait."""
        assert self._waiter is None
        self._waiter, self._context = call, context

    def cancel(self, msg: Any = None) -> bool:
        """Let who waits hear that nothing will come; tells whether somebody waited."""
        if self._waiter is None:
            return False
        self._cancelled, self._message = True, msg
        self.pass_on_soon()
        return True

    def result(self) -> None:
        """Tell who goes on whether it was cancelled."""
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError(*(() if self._message is None else (self._message,)))
