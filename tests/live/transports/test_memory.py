"""The transport without sockets, where it does more than the contract asks."""

import asyncio

import pytest

from anabranch.core.codec import name_of
from anabranch.core.ids import NodeId
from anabranch.live.transports.memory import MemoryHub, MemoryTransport
from live.transports.endpoints import Owner, run, until
from machines import SIGNERS, Chain, packet

A, B, C = (NodeId(letter * 20) for letter in (b"a", b"b", b"c"))


async def started(
    hub: MemoryHub, node: NodeId, delay: object = 0.0
) -> tuple[MemoryTransport, Owner]:
    transport, owner = MemoryTransport(node, hub, delay), Owner()  # type: ignore[arg-type]
    await transport.start(owner)
    return transport, owner


def test_an_address_names_the_node() -> None:
    async def test() -> None:
        hub = MemoryHub()
        transport = MemoryTransport(A, hub)
        assert transport.address == ""
        await transport.start(Owner())
        assert transport.address == "memory:" + A.hex()

    run(test())


def test_both_ends_hear_of_a_cut_and_what_is_on_its_way_is_lost() -> None:
    async def test() -> None:
        hub = MemoryHub()
        (one, ear), (other, other_ear) = await started(hub, A, 0.01), await started(hub, B, 0.01)
        await one.find(other.address)
        ear.links[B].send(b"lost")
        hub.cut(A, B)
        assert (ear.downs, other_ear.downs) == ([(B, "cut")], [(A, "cut")])
        hub.cut(A, B)
        hub.cut(A, C)
        await one.find(other.address)
        ear.links[B].send(b"arrives")
        await until(lambda: other_ear.packets)
        assert other_ear.packets == [b"arrives"]
        assert len(ear.downs) == len(other_ear.downs) == 1

    run(test())


def test_the_round_trip_is_both_delays() -> None:
    async def test() -> None:
        hub, delays = MemoryHub(), {(A, B): 0.004, (B, A): 0.001}
        (one, ear), (other, other_ear) = (
            await started(hub, A, lambda *way: delays[way]),
            await started(hub, B, lambda *way: delays[way]),
        )
        await one.find(other.address)
        assert ear.rtts == other_ear.rtts == [pytest.approx(0.005)]

    run(test())


def test_packets_never_overtake_each_other() -> None:
    async def test() -> None:
        hub, delays = MemoryHub(), [0.0]
        (one, ear), (other, other_ear) = (
            await started(hub, A, lambda *_: delays[0]),
            await started(hub, B),
        )
        await one.find(other.address)
        for number, delays[0] in enumerate([0.02, 0.0, 0.01, 0.0]):
            ear.links[B].send(bytes([number]))
            await asyncio.sleep(0)
        await until(lambda: len(other_ear.packets) == 4)
        assert other_ear.packets == [b"\0", b"\1", b"\2", b"\3"]

    run(test())


def test_a_node_that_stops_hears_nothing_more_and_can_come_back() -> None:
    async def test() -> None:
        hub = MemoryHub()
        (one, ear), (other, other_ear) = await started(hub, A), await started(hub, B)
        one.dial(B, other.address)
        await one.stop()
        assert hub.transports == {B: other}
        again, again_ear = await started(hub, A)
        assert await again.find(other.address) == B
        assert (ear.ups, ear.downs) == ([], [])
        assert again_ear.ups == [B]
        assert other_ear.ups == [A]

    run(test())


def test_a_node_does_not_link_with_itself() -> None:
    async def test() -> None:
        one, ear = await started(MemoryHub(), A)
        one.dial(A, one.address)
        await until(lambda: ear.downs)
        assert ear.downs == [(A, "self-dial")]

    run(test())


def test_what_the_other_has_sent_meanwhile_is_not_sent_to_it() -> None:
    async def test() -> None:
        hub = MemoryHub()
        (one, ear), (other, other_ear) = await started(hub, A, 0.01), await started(hub, B, 0.01)
        await one.find(other.address)
        link = ear.links[B]
        chain = Chain(SIGNERS[5])
        known, new = packet(chain.frame()), packet(chain.frame())
        link.send(known, b"word", new)
        assert link.withdraw([name_of(known), name_of(packet(chain.frame()))]) == len(known)
        link.send(b"end")
        await until(lambda: b"end" in other_ear.packets)
        assert other_ear.packets == [b"word", new, b"end"]
        link.send(known)
        assert link.withdraw([name_of(known)]) == len(known)  # and nothing is left to send
        await asyncio.sleep(0)
        link.send(b"more")
        await until(lambda: b"more" in other_ear.packets)
        assert other_ear.packets[-2:] == [b"end", b"more"]
        assert link.withdraw([name_of(known)]) == 0

    run(test())
