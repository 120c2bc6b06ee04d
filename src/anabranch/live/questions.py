"""What a node's application asks of the registry, and the answers it awaits, in a bounded time."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from anabranch.core.machine import Answered, Event, Follow, Learned, Request
from anabranch.core.messages import Control
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reader import RegistryReader
from anabranch.live.errors import AnabranchError, NetworkUnreachable

PATIENCE_S = 12.0
MAX_LOOKED_UP = 1_500  # chains that are kept up to date, beside those of streams in use

T = TypeVar("T")


class Questions:
    """Chains that are followed and requests under way, with whoever awaits them."""

    def __init__(
        self, registry: RegistryReader, feed: Callable[[Event], None], used: Callable[[], set[str]]
    ) -> None:
        self._registry = registry
        self._feed = feed
        self._used = used  # the streams that the node is in
        self._looked_up: dict[str, None] = {}  # chains of the registry, the last one last
        self._lessons: dict[str, list[asyncio.Future[None]]] = {}
        self._answers: dict[int, asyncio.Future[Answered]] = {}
        self._ticket = 0

    async def follow(self, chain: str) -> None:
        """Wait until the registry's word on a chain is known; it is kept up to date after that."""
        self._looked_up.pop(chain, None)
        self._looked_up[chain] = None
        if self._registry.knows(chain):
            return
        self._forget_chains()
        future = self._lesson(chain)
        self._feed(Follow(chain))
        await _in_time(future, f"no tracker answered about {chain}")

    async def reach(self, chain: str, reached: Callable[[], bool], wait_s: float) -> bool:
        """Wait for news of a chain until something is so; tell whether it came about in time."""
        until = asyncio.get_running_loop().time() + wait_s
        while not reached():
            left = until - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait([self._lesson(chain)], timeout=left)
            if not done:
                return False
            done.pop().result()  # or that there is nothing to wait for any more
        return True

    async def ask(self, message: Control) -> Control:
        """Ask the registry something."""
        self._ticket += 1
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[self._ticket] = future
        self._feed(Request(self._ticket, message))
        answer = await _in_time(future, "no tracker answered")
        if answer.message is None:
            raise NetworkUnreachable(_why_unanswered(answer.problem))
        return answer.message

    def learned(self, effect: Learned) -> None:
        """The registry's word on a chain has come."""
        for future in self._lessons.pop(effect.chain, ()):
            if not future.done():
                future.set_result(None)

    def answered(self, effect: Answered) -> None:
        """An answer has come, or there will be none."""
        future = self._answers.pop(effect.ticket)
        if not future.done():
            future.set_result(effect)

    def give_up(self, error: AnabranchError) -> None:
        """Tell everybody who awaits something that it will not come."""
        fail(self._answers.values(), error)
        fail((future for lessons in self._lessons.values() for future in lessons), error)

    def _lesson(self, chain: str) -> asyncio.Future[None]:
        """Return what is done when the registry's next word on a chain comes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = [other for other in self._lessons.get(chain, ()) if not other.done()]
        self._lessons[chain] = [*waiting, future]  # without those who gave up waiting
        return future

    def _forget_chains(self) -> None:
        """Make room for another chain: those go first that were not looked up for longest."""
        too_many = len(self._looked_up) - MAX_LOOKED_UP
        if too_many <= 0:  # to ask what is in use takes long where that is much
            return
        used = self._used()
        idle = [c for c in self._looked_up if c not in used and c != NETWORK]
        for chain in idle[:too_many]:
            del self._looked_up[chain]
            self._registry.forget(chain)


def fail(futures: Iterable[asyncio.Future[T]], error: AnabranchError) -> None:
    """Let futures that are not done raise an error, whether or not anybody awaits them still."""
    for future in list(futures):
        if not future.done():
            future.set_exception(error)
            future.exception()  # nobody may be awaiting it any more, which is no mistake


async def _in_time(future: asyncio.Future[T], problem: str) -> T:
    # Not wait_for: that of Python 3.11 forgets to be cancelled if the answer comes just then.
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await future
    except TimeoutError:
        raise NetworkUnreachable(
            f"{problem} within {PATIENCE_S:.0f} s: is the tracker running?"
        ) from None


def _why_unanswered(problem: str) -> str:
    if problem == "registry-unreachable":
        return (
            "the tracker that keeps the registry cannot be reached: streams go on carrying "
            "messages without it, and can be created or changed when it is back"
        )
    return f"the registry did not answer ({problem}): try again"
