"""What is asked of the registry is awaited for a bounded time, and not when nobody wants it."""

import asyncio
from typing import ClassVar

import pytest

from anabranch.core.machine import Answered, Event, Request
from anabranch.core.messages import Control
from anabranch.core.messages.registry import ListChains
from anabranch.live import questions
from anabranch.live.errors import NetworkUnreachable
from anabranch.live.questions import Questions
from live.networks import run


class Asker:
    """Somebody whose questions go nowhere until a test answers them."""

    def __init__(self) -> None:
        self.fed: list[Event] = []
        # Nothing here looks at what the registry knows.
        self.questions = Questions(None, self.fed.append, set)  # type: ignore[arg-type]

    async def ask(self) -> "asyncio.Task[Control]":
        """Ask, and wait until the question is on its way."""
        asking = asyncio.create_task(self.questions.ask(QUESTION))
        await asyncio.sleep(0)
        assert [type(event) for event in self.fed] == [Request]
        return asking


QUESTION = ListChains(1)


def test_who_is_cancelled_while_the_answer_comes_is_cancelled() -> None:
    async def main() -> None:
        asker = Asker()
        asking = await asker.ask()
        asker.questions.answered(Answered(1, QUESTION))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    run(main())


def test_an_answer_that_does_not_come_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "PATIENCE_S", 0.01)

    async def main() -> None:
        asking = await Asker().ask()
        with pytest.raises(NetworkUnreachable, match="no tracker answered within"):
            await asking

    run(main())


def test_what_is_in_use_is_not_looked_up_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions, "MAX_LOOKED_UP", 2)
    monkeypatch.setattr(questions, "PATIENCE_S", 0.01)
    looks: list[None] = []

    class Knows:
        """A registry that knows nothing, and forgets what it is told to."""

        forgotten: ClassVar[list[str]] = []
        knows = staticmethod(lambda chain: False)
        forget = forgotten.append

    def used() -> set[str]:
        looks.append(None)
        return {"a"}

    async def main() -> None:
        asked = Questions(Knows(), lambda event: None, used)  # type: ignore[arg-type]
        for chain in ("a", "b"):
            with pytest.raises(NetworkUnreachable):
                await asked.follow(chain)
        assert not looks
        with pytest.raises(NetworkUnreachable):
            await asked.follow("c")
        assert (len(looks), Knows.forgotten) == (1, ["b"])

    run(main())
