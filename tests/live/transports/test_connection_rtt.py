"""The round trip of a link: soon measured, and not led astray by one late echo."""

import asyncio

from anabranch.live.transports.connection import SAMPLES
from anabranch.live.transports.websocket import Timing
from live.transports.endpoints import (
    ANSWER,
    LARGE,
    SMALL,
    Endpoint,
    proved_client,
    run,
    started,
    until,
)
from support.waiting import limit

HELD_S = 0.3  # much longer than another echo takes


def test_one_late_echo_does_not_lead_the_estimate_astray() -> None:
    async def test() -> None:
        held_s = limit(HELD_S)
        timing = Timing(ping_every_s=60.0, ping_new_s=0.02, silent_s=1e6, tick_s=0.01)
        home = Endpoint(SMALL, timing=timing)
        async with started(home):
            client = await proved_client(home.address, LARGE, echo=False)
            for number in range(SAMPLES):
                await until(lambda number=number: len(client.asked) > number)
                if number == 0:
                    await asyncio.sleep(held_s)  # as if it had waited behind a burst
                    assert len(client.asked) == 1  # no other request while one is under way
                client.say_tagged(ANSWER + client.asked[number])
                await until(lambda number=number: len(home.owner.rtts) > number)
                assert home.owner.links[LARGE.node].rtt_s == home.owner.rtts[-1]
            assert home.owner.rtts[0] >= held_s
            assert home.owner.rtts[2] < held_s  # a mean would be a third of the late echo
            assert home.owner.rtts[-1] < held_s / 3

    run(test())
