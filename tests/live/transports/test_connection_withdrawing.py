"""What is queued for a neighbour and is not needed there any more does not leave."""

import asyncio

from anabranch.core.codec import name_of
from live.transports.endpoints import LARGE, SMALL, Endpoint, linked, run, started, until
from machines import SIGNERS, Chain, packet


def test_what_the_other_has_sent_meanwhile_is_not_sent_to_it() -> None:
    async def test() -> None:
        home, away = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, away):
            await linked(away, home)
            link = home.link(away)
            chain = Chain(SIGNERS[5])
            known, new = packet(chain.frame()), packet(chain.frame())
            link.send(known, b"word", new)
            assert link.withdraw([name_of(known), name_of(packet(chain.frame()))]) == len(known)
            link.send(b"end")
            await until(lambda: b"end" in away.owner.packets)
            assert away.owner.packets == [b"word", new, b"end"]
            link.send(known)
            assert link.withdraw([name_of(known)]) == len(known)  # and nothing is left to send
            await asyncio.sleep(0)
            link.send(b"more")
            await until(lambda: b"more" in away.owner.packets)
            assert away.owner.packets[-2:] == [b"end", b"more"]
            assert link.withdraw([name_of(known)]) == 0

    run(test())
