"""Where one task waits for messages: it goes on at once, and not in the loop's next turn.

Where many sockets are ready, a loop reads all of them before any task has its turn; with several
nodes in a process that is a third of a message's delay. So who waits here is not put at the end
of the loop's queue, unless another task is running just now: none can run within another.

A task waits for an ordinary future, since asyncio knows those best, and one that is done by the
time its waiter is called looks to the waiter as any other does.
"""

import asyncio


class Handover:
    """Waits for something to be there."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits here."""
        return self._future is not None and not self._future.done()

    def wait(self) -> "asyncio.Future[None]":
        """Return what one task may wait for, once."""
        self._future = future = self._loop.create_future()
        return future

    def pass_on(self) -> None:
        """Let who waits go on, at once if that can be."""
        future = self._future
        if future is None:
            return
        if asyncio.current_task(self._loop) is not None:
            self.pass_on_soon()
            return
        self._future = None
        if waiters := future._callbacks:
            [(waiter, context)] = waiters
            future.remove_done_callback(waiter)
            future.set_result(None)
            context.run(waiter, future)
        elif not future.done():  # nobody has begun to wait for it
            future.set_result(None)

    def pass_on_soon(self) -> None:
        """Let who waits go on in the loop's next turn."""
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)
