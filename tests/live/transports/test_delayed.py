"""Links that seem long: what is held, for how long, and in which order."""

import asyncio
import time

import pytest

from anabranch.core.ids import NodeId
from anabranch.core.packets import Packets
from anabranch.live.transports import delayed
from anabranch.live.transports.delayed import DelayedTransport, Way
from anabranch.live.transports.memory import MemoryHub, MemoryTransport
from live.transports.endpoints import LARGE, SMALL, Endpoint, Owner, run, until

A, B = (NodeId(letter * 20) for letter in (b"a", b"b"))
FAR = Way(0.03, 0.02)


class Pair:
    """Two nodes of a hub that seem apart."""

    def __init__(self, way: Way = FAR) -> None:
        self.hub = MemoryHub()
        self.ears = Owner(), Owner()
        self.one = DelayedTransport(MemoryTransport(A, self.hub), {B: way})
        self.other = DelayedTransport(MemoryTransport(B, self.hub), {A: Way(*reversed(way))})

    async def start(self) -> None:
        await self.one.start(self.ears[0])
        await self.other.start(self.ears[1])

    async def link(self) -> None:
        await self.start()
        self.one.dial(B, self.other.address)
        await until(lambda: self.ears[0].links and self.ears[1].links)

    async def stop(self) -> None:
        await self.one.stop()
        await self.other.stop()


def test_a_packet_takes_its_way_and_the_answer_the_other() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.link()
        for (here, there), delay_s in zip((pair.ears, pair.ears[::-1]), FAR, strict=True):
            began = time.monotonic()
            here.links[B if here is pair.ears[0] else A].send(b"packet")
            await until(lambda there=there: there.packets)
            assert time.monotonic() - began >= delay_s - delayed.SHORTEST_S
        await pair.stop()

    run(test())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_websockets_are_delayed_and_their_round_trips_know_it(loop: str) -> None:
    async def test() -> None:
        ends = Endpoint(SMALL), Endpoint(LARGE)
        wrapped = [
            DelayedTransport(end.transport, {other.node: way})
            for end, other, way in zip(ends, ends[::-1], (FAR, Way(*reversed(FAR))), strict=True)
        ]
        for transport, end in zip(wrapped, ends, strict=True):
            await transport.start(end.owner)
        began = time.monotonic()
        wrapped[0].dial(LARGE.node, wrapped[1].address)
        await until(lambda: ends[0].owner.rtts and ends[1].owner.rtts)
        assert time.monotonic() - began > delayed.OPENING_ROUND_TRIPS * sum(FAR) - 0.001
        for end, other in (ends, ends[::-1]):
            assert min(end.owner.rtts) > sum(FAR)
            assert end.link(other).rtt_s == end.owner.rtts[-1]
        began = time.monotonic()
        ends[0].link(ends[1]).send(b"packet")
        await until(lambda: ends[1].owner.packets)
        assert time.monotonic() - began > FAR.there_s - delayed.SHORTEST_S
        for transport in wrapped:
            await transport.stop()

    run(test(), loop)


def test_whoever_finds_waits_for_the_handshake() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.start()
        began = time.monotonic()
        assert await pair.one.find(pair.other.address) == B
        assert time.monotonic() - began >= delayed.OPENING_ROUND_TRIPS * sum(FAR) - 0.001
        assert pair.ears[0].links[B].rtt_s == pytest.approx(sum(FAR))
        await pair.stop()

    run(test())


def test_a_dial_that_is_held_is_answered_by_the_others_link() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.start()
        pair.one.dial(B, pair.other.address)
        pair.one.dial(B, pair.other.address)
        await pair.other.find(pair.one.address)
        await asyncio.sleep(delayed.OPENING_ROUND_TRIPS * sum(FAR) + 0.01)
        assert (pair.ears[0].ups, pair.ears[0].downs) == ([B], [])
        await pair.stop()

    run(test())


def test_the_word_of_an_end_comes_after_the_packets_before_it() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.link()
        link = pair.ears[0].links.pop(B)
        link.send(b"last")
        link.close("bye")
        link.close("again")
        await asyncio.sleep(0.001)
        assert (pair.ears[1].packets, pair.ears[1].downs) == ([], [])
        await until(lambda: pair.ears[1].downs)
        assert (pair.ears[1].packets, pair.ears[1].downs) == ([b"last"], [(A, "bye")])
        assert pair.ears[0].downs == []
        await pair.stop()

    run(test())


def test_who_closes_a_link_hears_nothing_of_what_was_on_its_way() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.link()
        pair.ears[1].links[A].send(b"too late")
        await asyncio.sleep(0.002)
        pair.ears[0].links.pop(B).close("bye")
        await until(lambda: pair.ears[1].downs)
        assert pair.ears[0].packets == []
        await pair.stop()

    run(test())


def test_a_new_link_comes_after_the_end_of_the_old_one() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.link()
        pair.hub.cut(A, B)
        assert pair.ears[0].downs == []
        await pair.one.find(pair.other.address)
        assert (pair.ears[0].ups, pair.ears[0].downs) == ([B, B], [(B, "replaced")])
        assert (pair.ears[1].ups, pair.ears[1].downs) == ([A, A], [(A, "replaced")])
        await pair.stop()

    run(test())


def test_a_way_that_is_shorter_than_a_timers_step_is_not_held() -> None:
    async def test() -> None:
        pair = Pair(Way(0.0001, 0.0001))
        await pair.link()
        assert pair.ears[0].links[B].rtt_s == 0
        pair.one.received(B, Packets.of([b"at once"]))
        assert pair.ears[0].packets == [b"at once"]
        await pair.stop()

    run(test())


def test_who_is_not_named_is_near() -> None:
    async def test() -> None:
        hub, ears = MemoryHub(), (Owner(), Owner())
        one, other = (DelayedTransport(MemoryTransport(node, hub), {}) for node in (A, B))
        await one.start(ears[0])
        await other.start(ears[1])
        assert await one.find(other.address) == B
        one.received(B, Packets.of([b"at once"]))
        assert ears[0].packets == [b"at once"]
        hub.cut(A, B)
        assert ears[0].downs == [(B, "cut")]
        await one.stop()
        await other.stop()

    run(test())


def test_a_link_with_too_much_on_its_way_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "MAX_HELD_BYTES", 10)

    async def test() -> None:
        pair = Pair()
        await pair.link()
        for _ in range(3):
            pair.one.received(B, Packets.of([b"12345"]))
        assert pair.ears[0].downs == [(B, "link-full")]
        await until(lambda: pair.ears[1].downs)
        assert (pair.ears[0].packets, pair.ears[1].downs) == ([], [(A, "link-full")])
        await pair.stop()

    run(test())
