"""Reads the pages of a network's trackers, as one."""

import asyncio
from types import TracebackType
from typing import Any

import aiohttp

from anabranch.live.errors import NetworkUnreachable, NoSuchStream

ANSWER_S = 5.0

Json = dict[str, Any]


class Pages:
    """The trackers' pages: each stream part is asked of whichever tracker has it."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = [address for address in addresses if address]
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Pages":
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(self, page: str, **query: str) -> list[Json]:
        """Return what every tracker that is alive says, but for those who know nothing of it."""
        answers = await asyncio.gather(*(self._get(a, page, query) for a in self._addresses))
        found = [body for status, body in answers if status == 200]
        if not found:
            refused = next((body for status, body in answers if status), None)
            if refused is not None:
                raise NoSuchStream(str(refused.get("error", "the trackers know nothing of this")))
            raise NetworkUnreachable("no tracker answers: is the network running?")
        return found

    async def parts(self, **query: str) -> list[Json]:
        """Return the topology of each part, once: where two trackers have it, of the larger."""
        best: dict[tuple[str, int], Json] = {}
        for answer in await self.ask("/topology", **query):
            for part in answer["parts"]:
                key = (part["stream"], part["partition"])
                if key not in best or part["nodes"] > best[key]["nodes"]:
                    best[key] = part
        return [best[key] for key in sorted(best)]

    async def prediction(self, stream: str, partition: int = 0, **query: str) -> Json:
        """Return the predicted delays of a part, of the tracker that has most of it."""
        answers = await self.ask("/prediction", stream=stream, partition=str(partition), **query)
        return max(answers, key=lambda answer: int(answer["nodes"]))

    async def _get(self, address: str, page: str, query: dict[str, str]) -> tuple[int, Json]:
        assert self._session is not None
        try:
            async with self._session.get(address + page, params=query) as response:
                body = await response.json()
                return (response.status, body) if isinstance(body, dict) else (0, {})
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, {}
