"""How much of one stream may be under way at once: beyond that, publishers wait their turn."""

import asyncio
from collections import deque

from anabranch.core.waiting_drafts import MAX_WAITING_BYTES, MAX_WAITING_DRAFTS

IN_FLIGHT = MAX_WAITING_DRAFTS // 2  # messages of one stream that may wait for their outcome
IN_FLIGHT_BYTES = MAX_WAITING_BYTES // 2


class Room:
    """Room for the messages of one stream, from their publication to their outcome."""

    __slots__ = ("_called", "bytes", "messages", "waiting")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._called = 0  # whose turn it is, and who have not gone on yet

    @property
    def full(self) -> bool:
        """Whether the next one has to wait."""
        return self.messages >= IN_FLIGHT or self.bytes >= IN_FLIGHT_BYTES

    def take(self, size: int) -> bool:
        """Take room if there is any, and nobody has come before."""
        if self.messages >= IN_FLIGHT or self.bytes >= IN_FLIGHT_BYTES:  # as `full`
            return False
        if self.waiting or self._called:
            return False
        self.messages += 1
        self.bytes += size
        return True

    async def enter(self, size: int) -> None:
        """Take room; wait behind those who wait already, so that nobody loses its place."""
        if not self.take(size):
            await self.wait(self.line_up(size), size)

    def line_up(self, size: int) -> "asyncio.Future[None]":
        """Take a place in the line; return what `wait` needs to know it by."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((turn, size))
        self._call()
        return turn

    async def wait(self, turn: "asyncio.Future[None]", size: int) -> None:
        """Wait until it is one's turn; who gives up leaves its place to others."""
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the room was ours already
                self._called -= 1
                self.leave(size)
            raise
        self._called -= 1

    def leave(self, size: int) -> None:
        """Give the room to those who have waited longest, and wake nobody else."""
        self.messages -= 1
        self.bytes -= size
        self._call()

    def _call(self) -> None:
        while self.waiting and not self.full:
            turn, size = self.waiting.popleft()
            if not turn.done():
                self.messages += 1
                self.bytes += size
                self._called += 1
                turn.set_result(None)
