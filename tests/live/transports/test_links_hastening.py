"""A single packet leaves at once where that is asked for; where many come, they leave together."""

import asyncio

import pytest

from live.transports.endpoints import LARGE, LOOPS, SMALL, Endpoint, linked, run, started, until


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_hastened_has_left_before_the_loop_turns(loop: str) -> None:
    async def test() -> None:
        home, away = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, away):
            await linked(away, home)
            link = home.link(away)
            link.send(b"usual")
            assert link._queue == [b"usual"]
            home.transport.hasten()
            assert link._queue == []
            link.send(b"after it")  # in the same turn, and nobody is in a hurry
            assert link._queue == [b"after it"]
            await until(lambda: b"after it" in away.owner.packets)
            assert away.owner.packets == [b"usual", b"after it"]

    run(test(), loop)


def test_who_is_always_in_a_hurry_waits_for_the_end_of_the_turn() -> None:
    async def test() -> None:
        home, away = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, away):
            await linked(away, home)
            link, sent = home.link(away), 0

            def hurry(times: int) -> list[int]:
                """Send and hasten; return how many packets waited after each."""
                nonlocal sent
                waited = []
                for _ in range(times):
                    link.send(sent.to_bytes(2))
                    sent += 1
                    home.transport.hasten()
                    waited.append(len(link._queue))
                return waited

            assert hurry(3) == [0, 1, 2]
            await asyncio.sleep(0)
            assert link._queue == []
            assert hurry(1) == [1]  # the turn before was a busy one
            await asyncio.sleep(0)
            assert hurry(2) == [0, 1]  # and this one comes after a calm one
            await until(lambda: len(away.owner.packets) == sent)
            assert away.owner.packets == [number.to_bytes(2) for number in range(sent)]

    run(test())


def test_hastening_with_nothing_to_send_does_nothing() -> None:
    async def test() -> None:
        home, away = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, away):
            home.transport.hasten()
            await linked(away, home)
            link = home.link(away)
            for _ in range(3):
                home.transport.hasten()
            link.send(b"hello")
            home.transport.hasten()
            assert link._queue == []
            await until(lambda: away.owner.packets == [b"hello"])

    run(test())
