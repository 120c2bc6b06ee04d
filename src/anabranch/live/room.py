"""How much of one stream may be under way at once: beyond that, publishers wait their turn."""

import asyncio
from collections import deque

from anabranch.core.waiting_drafts import MAX_WAITING_BYTES, MAX_WAITING_DRAFTS

IN_FLIGHT = MAX_WAITING_DRAFTS // 2  # messages of one stream that may wait for their outcome
IN_FLIGHT_BYTES = MAX_WAITING_BYTES // 2


class Room:
    """Room for the messages of one stream, from their publication to their outcome."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def full(self) -> bool:
        """Whether the next one has to wait."""
        return self.messages >= IN_FLIGHT or self.bytes >= IN_FLIGHT_BYTES

    def take(self, size: int) -> bool:
        """Take room if there is any."""
        if self.messages >= IN_FLIGHT or self.bytes >= IN_FLIGHT_BYTES:
            return False
        self.messages += 1
        self.bytes += size
        return True

    async def enter(self, size: int) -> None:
        """Take room; wait behind those who wait already, so that nobody loses its place."""
        if self.take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((turn, size))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the room was ours already
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        """Give the room to those who have waited longest, and wake nobody else."""
        self.messages -= 1
        self.bytes -= size
        while self.waiting and not self.full:
            turn, waiting = self.waiting.popleft()
            if not turn.done():
                self.take(waiting)
                turn.set_result(None)
