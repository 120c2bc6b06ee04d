"""Attacks by nodes that have a right to be there, and by a crowd at the door."""

import asyncio
import os
import socket
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from anabranch import Network
from anabranch.core import frames
from anabranch.core.ids import NodeId, show
from anabranch.core.key_records import NONCE_BYTES, KeyQuestion, make_request
from anabranch.core.messages import KeyRequest, Status
from anabranch.core.messages.links import TICKET_BYTES
from anabranch.core.messages.tracker import MAX_COUNTER
from anabranch.core.tracked import Order, Suitable
from anabranch.live.keys import new_key
from anabranch.live.tracker import TrackerProcess
from anabranch.live.transports.limits import Limits
from anabranch.overlays.regular_graph import RegularGraph
from live.attackers import Forger, Hole, Spy, Swallower, keys_of
from live.networks import LiveNetwork, eventually, live_network, neighbours, run
from live.town import Town, town

DEGREE = 4


async def let_in(place: Town, spy: Spy, neighbours: int = DEGREE) -> None:
    """Give a spy's user the right to publish, hence a place."""
    await place.allow({spy.user.node: "publish"})
    await place.enter(spy, neighbours)


# --- Lies -----------------------------------------------------------------------------------


def test_a_node_that_lies_in_its_status(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=4) as place:
            liar = Spy(place.live, place.stream.id)
            await let_in(place, liar)
            tracker, machine = place.tracker.identity.node, place.tracker.machine.tracker
            honest = {node.node.node: node.node.address for node in place.nodes}
            everybody, elsewhere = tuple(sorted(honest)), next(iter(honest.values()))

            async def unharmed(text: str) -> None:
                await eventually(
                    lambda: all(neighbours(n, place.stream.id) >= DEGREE - 1 for n in place.nodes),
                    "neighbours",
                )
                await place.publish(text)
                assert len(machine.neighbours(place.part, liar.node)) <= DEGREE
                assert place.tracker.driver.failure is None

            counter = machine.nodes(place.part)[liar.node].counter
            for _ in range(50):  # nobody is there; all are, and far away; another's address
                liar.say(tracker, Status(place.part, counter, (), (), liar.address))
                liar.say(tracker, Status(place.part, counter, everybody, (60_000_000,) * 5))
                liar.say(tracker, Status(place.part, 0, everybody, (1,) * 64, elsewhere))
                liar.say(tracker, Status(place.part, counter + 1, (liar.node,) * 64, (), "ws://:0"))
            await unharmed("after fifty lies")
            liar.say(tracker, Status(place.part, MAX_COUNTER, everybody, (), liar.address))
            await unharmed("after a great number")
            liar.say(tracker, Status(place.part, MAX_COUNTER + 1))
            assert await liar.end_of(tracker) == "counter"
            await eventually(
                lambda: set(machine.topology(place.part)) == set(honest), "the liar is out"
            )
            await unharmed("after all")

    run(main())


def test_a_node_that_passes_nothing_on(tmp_path: Path) -> None:
    async def main() -> None:
        # Of seven nodes with four neighbours each, any five are connected without the other two.
        async with town(tmp_path, guests=4) as place:
            holes = [Hole(place.live, place.stream.id) for _ in range(2)]
            for hole in holes:
                await let_in(place, hole)
            machine = place.tracker.machine.tracker
            placed = {node.node.node for node in place.nodes} | {hole.node for hole in holes}
            await eventually(
                lambda: (
                    set(machine.topology(place.part)) == placed
                    and all(
                        set(n.node.peer.neighbours(place.part))
                        == set(machine.neighbours(place.part, n.node.node))
                        for n in place.nodes
                    )
                ),
                "all are where they should be",
            )
            for number in range(20):
                await place.publish(f"around them {number}")
            assert all(len(set(hole.frames)) >= 20 for hole in holes)

    run(main())


# --- Keys -----------------------------------------------------------------------------------


def keep_apart(tracker: TrackerProcess, *pairs: tuple[NodeId, NodeId]) -> None:
    """Let some never be neighbours in the parts that a tracker begins to serve."""
    apart = {frozenset(pair) for pair in pairs}

    def make(degree: int, rng: Any, suitable: Suitable, order: Order) -> RegularGraph[NodeId]:
        fits = lambda a, b: frozenset((a, b)) not in apart and suitable(a, b)  # noqa: E731
        return RegularGraph(degree, rng, fits, order)

    tracker.machine.tracker._topologies = {"random-regular": make}


async def surrounded(live: LiveNetwork, stack: AsyncExitStack) -> tuple[Town, Swallower, Forger]:
    """Give a guest three ways to the owner: two liars, and, further and last, two honest nodes."""
    # Frames come first by the shortest way, and others are asked in the order of their names.
    owner, near, guest, far = sorted((new_key()[0] for _ in range(4)), key=lambda key: key.node)
    network = await live.join(node_key=owner)
    stream = await network.create_stream("surrounded")
    place = Town(live, stack, stream)
    swallower, forger = (
        next(spy for spy in (kind(live, stream.id) for _ in range(10_000)) if spy.node < far.node)
        for kind in (Swallower, Forger)
    )
    liars = [(spy.node, key.node) for spy in (swallower, forger) for key in (near, far)]
    ways = [(owner.node, guest.node), (owner.node, far.node), (near.node, guest.node)]
    keep_apart(live.trackers[0], *liars, *ways)
    users = [new_key()[0] for _ in range(3)]
    await stream.set_permissions(
        {show(user.node): "subscribe" for user in users}
        | {show(spy.user.node): "publish" for spy in (swallower, forger)}
    )
    await place.add(network)
    await place.enter(swallower, 1)
    await place.enter(forger, 2)
    for user, key in zip(users, (near, far, guest), strict=True):
        await place.add(await live.join(user, node_key=key))
    await eventually(
        lambda: [neighbours(node, stream.id) for node in place.nodes] == [3, 2, 2, 3], "three ways"
    )
    return place, swallower, forger  # type: ignore[return-value]


def test_a_relay_that_swallows_or_forges_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live, AsyncExitStack() as stack:
            place, swallower, forger = await surrounded(live, stack)
            rounds = 0
            while not (swallower.swallowed and forger.forged >= 3):
                rounds += 1
                assert rounds <= 20, "the guest never turned to a liar"
                # Somebody comes and goes, so that there is another key to be asked for.
                passer_by = new_key()[0]
                await place.allow({passer_by.node: "subscribe"})
                await place.publish(f"with a new key {rounds}")
                await place.allow({passer_by.node: ""})
            await place.publish("with the last key")
            assert [reader.contents for reader in place.readers] == [place.expected] * 4
            assert set(keys_of(place.nodes[3])) <= set(keys_of(place.nodes[0]))

    run(main())


def beyond(network: Network) -> dict[str, tuple[int, int]]:
    """Return the tables of a node that have outgrown their bounds."""
    sizes = network.node.peer.sizes()
    return {name: (size, bound) for name, (size, bound) in sizes.items() if size > bound}


def test_floods_of_key_requests(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            spies = [Spy(place.live, place.stream.id) for _ in range(2)]
            for number, spy in enumerate(spies):
                await let_in(place, spy, 2 + number)
            await place.publish("before the flood")
            chain = frames.peek((await spies[0].catch(1))[-1]).chain
            key_id = frames.lock_of(spies[0].frames[-1]).key_id

            def requests(spy: Spy, count: int, signed: bool) -> list[KeyRequest]:
                made = []
                for _ in range(count):
                    question = KeyQuestion(
                        *(spy.network, place.stream.id, place.owner, spy.user.node),
                        *(spy.user.public, (key_id,), int(time.time() * 1000)),
                        os.urandom(NONCE_BYTES),
                    )
                    request = make_request(spy.user, question) if signed else os.urandom(300)
                    ticket = os.urandom(TICKET_BYTES)
                    made.append(KeyRequest(place.part, chain, ticket, 1, request))
                return made

            owner, guest = place.nodes[0], place.nodes[1]
            passer_by, newcomer = new_key()[0], new_key()[0]
            await place.allow({passer_by.node: "subscribe", newcomer.node: "subscribe"})
            for spy, signed in zip(spies, (True, False), strict=True):
                for request in requests(spy, 4_000, signed):
                    spy.say(owner.node.node, request)
                for request in requests(spy, 500, signed):  # which it would have to pass on
                    spy.say(guest.node.node, request)
            # Meanwhile there is a new key, for which the honest ask.
            await place.allow({passer_by.node: ""})
            await place.add(await place.live.join(newcomer))
            await place.publish("during the flood")
            flood = (owner.node.node, "flood")
            await eventually(lambda: all(flood in spy.farewells for spy in spies), "they are out")
            assert [beyond(node) for node in place.nodes] == [{}, {}, {}]
            await place.publish("after the flood")

    run(main())


# --- A crowd at the door --------------------------------------------------------------------

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
OPENINGS = [
    b"",  # says nothing
    UPGRADE[:40],  # stops in the middle
    b"\x16\x03\x01" + bytes(200),  # speaks something else
    UPGRADE,  # and says nothing more
    UPGRADE + b"\x82\x85\x00\x00\x00\x00\x02\xff\xff\xff\xff",  # nonsense for a Hello
    bytes(100_000),
]


async def crowd(port: int, people: int, source: str, stay: AsyncExitStack) -> None:
    """Come to a door in a crowd, say something, and stay."""
    loop = asyncio.get_running_loop()
    for number in range(people):
        one = stay.enter_context(socket.socket())
        one.setblocking(False)
        one.bind((source, 0))
        with suppress(OSError):  # who is cut off at once says nothing
            await loop.sock_connect(one, ("127.0.0.1", port))
            one.send(OPENINGS[number % len(OPENINGS)])


@pytest.mark.skipif(sys.platform != "linux", reason="one machine needs many loopback addresses")
def test_floods_of_handshakes(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place, AsyncExitStack() as stay:
            ports = [place.tracker.transport.port]
            ports += [int(node.node.address.rpartition(":")[2]) for node in place.nodes]
            limits = Limits()
            for port in ports:
                for source in ("127.0.0.2", "127.0.0.3"):
                    await crowd(port, 300, source, stay)
            for node in place.nodes:
                transport: Any = node.node._transport
                assert 0 < transport.sizes()["pending"] <= 2 * limits.pending_per_address
            newcomer = new_key()[0]
            await place.allow({newcomer.node: "subscribe"})
            await place.add(await place.live.join(newcomer))
            await place.publish("through the crowd")
            # From one's own address they are a nuisance, until they have had their time.
            for port in ports[1:]:
                await crowd(port, 300, "127.0.0.1", stay)
            another = new_key()[0]
            await place.allow({another.node: "subscribe"})
            await place.add(await place.live.join(another))
            await place.publish("in the end")

    run(main())
