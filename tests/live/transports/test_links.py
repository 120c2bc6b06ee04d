"""One link between two nodes: crossing dials, lost links, and connections that wait."""

import asyncio
import random

import pytest

from anabranch.core.identity import Identity
from anabranch.live.transports import TransportError
from anabranch.live.transports.timing import Timing
from live.transports.endpoints import (
    LARGE,
    LOOPS,
    MIDDLE,
    SMALL,
    Endpoint,
    linked,
    proved_client,
    run,
    silent_address,
    started,
    until,
    waiting_client,
    welcomed_client,
)
from support.waiting import limit

both_loops = pytest.mark.parametrize("loop", LOOPS)
PATIENT = Timing(dial_s=1e6, tick_s=0.01, linger_s=0.5)


@both_loops
def test_crossing_dials_however_they_meet_end_in_one_link(loop: str) -> None:
    async def test() -> None:
        rng = random.Random(7)
        small, large = Endpoint(SMALL), Endpoint(LARGE)
        async with started(small, large):
            for number in range(100):
                first, second = rng.choice([(small, large), (large, small)])
                first.dial(second)
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                second.dial(first)
                await until(lambda: small.owner.links and large.owner.links)
                words = b"%d" % number
                small.link(large).send(words)
                large.link(small).send(words)
                await until(
                    lambda w=words: small.owner.packets[-1:] == large.owner.packets[-1:] == [w]
                )
                # Whatever lost has gone, and nobody was told of it.
                await until(lambda: small.transport.sizes()["wires"] == 1)
                await until(lambda: large.transport.sizes()["wires"] == 1)
                assert small.owner.downs == []
                closing = small if number % 2 else large
                other = large if number % 2 else small
                closing.owner.links.pop(other.node).close("next")
                await until(lambda: not small.owner.links and not large.owner.links)
                assert [reason for _, reason in other.owner.downs] == ["next"]
                other.owner.downs.clear()
            assert len(small.owner.ups) == len(large.owner.ups) == 100

    run(test(), loop)


@both_loops
def test_three_nodes_that_all_dial_each_other_have_three_links(loop: str) -> None:
    async def test() -> None:
        nodes = [Endpoint(identity) for identity in (SMALL, MIDDLE, LARGE)]
        async with started(*nodes):
            for one in nodes:
                for other in nodes:
                    if one is not other:
                        one.dial(other)
            await until(lambda: all(len(node.owner.links) == 2 for node in nodes))
            await until(lambda: all(node.transport.sizes()["wires"] == 2 for node in nodes))
            assert all(len(node.owner.ups) == 2 and not node.owner.downs for node in nodes)

    run(test(), loop)


def test_the_smaller_node_holds_the_others_connection_while_it_dials() -> None:
    async def test() -> None:
        small = Endpoint(SMALL, timing=Timing(dial_s=limit(0.3), tick_s=0.01, linger_s=0.5))
        with silent_address() as silent:
            async with started(small):
                small.transport.dial(LARGE.node, silent)
                client = await waiting_client(small.address, LARGE)
                await until(lambda: small.transport.sizes()["held"] == 1)
                assert len(client.heard) == 1  # the Welcome, and no Ready yet
                await client.answer(2)
                # Our dial has failed and nobody is told: the other's connection is the answer.
                assert (small.owner.ups, small.owner.downs) == ([LARGE.node], [])

    run(test())


def test_the_larger_node_takes_what_comes_and_gives_up_its_dial() -> None:
    async def test() -> None:
        large = Endpoint(LARGE)
        with silent_address() as silent:
            async with started(large):
                large.transport.dial(SMALL.node, silent)
                await proved_client(large.address, SMALL)
                assert (large.owner.ups, large.owner.downs) == ([SMALL.node], [])
                assert large.transport.sizes()["dials"] == 0

    run(test())


def test_a_node_that_lost_its_link_gets_a_new_one() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            before = await proved_client(home.address, LARGE)
            after = await proved_client(home.address, LARGE)
            await until(lambda: before.gone)
            assert before.closed == (1000, "replaced")
            assert home.owner.ups == [LARGE.node] * 2
            assert home.owner.downs == [(LARGE.node, "replaced")]
            home.owner.links[LARGE.node].send(b"hello")
            assert (await after.answer(3))[4:] == b"hello"

    run(test())


@both_loops
def test_a_node_restarted_with_the_same_identity_is_linked_again(loop: str) -> None:
    async def test() -> None:
        home, node, reborn = Endpoint(SMALL), Endpoint(LARGE), Endpoint(LARGE)
        async with started(home, node):
            await linked(node, home)
            async with started(reborn):
                await linked(reborn, home)
                await until(lambda: node.owner.downs)
                assert node.owner.downs == [(SMALL.node, "replaced")]
                assert home.owner.downs == [(LARGE.node, "replaced")]
                home.link(reborn).send(b"hello")
                await until(lambda: reborn.owner.packets == [b"hello"])
                assert node.owner.packets == []

    run(test(), loop)


def test_a_new_connection_takes_over_at_once_when_the_old_link_ends() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(crossing_s=1e6, tick_s=0.01, linger_s=0.5))
        async with started(home):
            before = await proved_client(home.address, LARGE)
            after = await waiting_client(home.address, LARGE)
            await until(lambda: home.transport.sizes()["held"] == 1)
            before.socket.disconnect()
            await after.answer(2)
            assert home.owner.downs == [(LARGE.node, "lost")]
            assert home.owner.ups == [LARGE.node] * 2

    run(test())


def test_a_connection_that_leaves_while_it_waits_changes_nothing() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            before = await proved_client(home.address, LARGE)
            after = await waiting_client(home.address, LARGE)
            after.socket.disconnect()
            await until(lambda: home.transport.sizes()["wires"] == 1)
            assert (home.owner.ups, home.owner.downs) == ([LARGE.node], [])
            assert not before.gone

    run(test())


def test_the_latest_of_several_that_wait_is_kept() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            before = await proved_client(home.address, LARGE)
            second = await waiting_client(home.address, LARGE)
            third = await waiting_client(home.address, LARGE)
            await until(lambda: second.gone)
            assert second.closed == (1000, "replaced")
            await third.answer(2)
            await until(lambda: before.gone)
            assert home.owner.ups == [LARGE.node] * 2

    run(test())


def test_a_link_that_the_owner_closes_makes_way_for_the_one_that_waits() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(crossing_s=1e6, tick_s=0.01, linger_s=0.5))
        async with started(home):
            await proved_client(home.address, LARGE)
            after = await waiting_client(home.address, LARGE)
            await until(lambda: home.transport.sizes()["held"] == 1)
            home.owner.links.pop(LARGE.node).close("enough")
            assert home.owner.ups == [LARGE.node]  # not while the owner is still speaking
            await after.answer(2)
            assert home.owner.ups == [LARGE.node] * 2
            assert home.owner.downs == []

    run(test())


def test_the_smaller_node_closes_the_others_connection_when_its_dial_succeeds() -> None:
    async def test() -> None:
        small, large = Endpoint(SMALL), Endpoint(LARGE)
        async with started(small, large):
            client, proof = await welcomed_client(small.address, LARGE)
            small.dial(large)
            client.say(proof)
            await until(lambda: client.gone)
            assert client.closed == (1000, "crossed")
            assert (small.owner.ups, small.owner.downs) == ([LARGE.node], [])

    run(test())


def test_who_waits_has_nothing_to_say() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(crossing_s=1e6, tick_s=0.01, linger_s=0.5))
        async with started(home):
            await proved_client(home.address, LARGE)
            client, proof = await welcomed_client(home.address, LARGE)
            client.say(proof)
            client.say(proof)
            await until(lambda: client.gone)
            assert client.closed == (1008, "handshake-order")
            assert (home.owner.ups, home.owner.downs) == ([LARGE.node], [])

    run(test())


def closing_as_crossed(identity: Identity) -> Endpoint:
    """Make an endpoint that closes every connection as crossed, and never dials."""
    endpoint = Endpoint(identity)
    links = endpoint.transport._links
    links.proved = lambda connection: connection.finish("crossed")  # type: ignore[method-assign]
    return endpoint


def test_a_dial_that_was_crossed_gives_up_in_time() -> None:
    async def test() -> None:
        small = closing_as_crossed(SMALL)
        large = Endpoint(LARGE, timing=Timing(dial_s=0.2, tick_s=0.01, linger_s=0.5))
        async with started(small, large):
            large.dial(small)
            await until(lambda: large.owner.downs)
            assert large.owner.downs == [(SMALL.node, "crossed")]

    run(test())


@pytest.mark.parametrize(("one", "other"), [(SMALL, LARGE), (LARGE, SMALL)])
def test_a_dial_that_was_crossed_waits_for_the_other(one: Identity, other: Identity) -> None:
    async def test() -> None:
        dialling, closing = Endpoint(one, timing=PATIENT), closing_as_crossed(other)
        async with started(dialling, closing):
            dialling.dial(closing)
            await until(lambda: dialling.transport._links.dials[other.node].crossed)
            await proved_client(dialling.address, other)
            assert (dialling.owner.ups, dialling.owner.downs) == ([other.node], [])

    run(test())


def test_a_dial_that_joins_a_find_is_answered_too() -> None:
    async def test() -> None:
        large, small = Endpoint(LARGE, timing=PATIENT), Endpoint(SMALL)
        small.transport._links.proved = lambda connection: None  # type: ignore[method-assign]
        async with started(large, small):
            finding = asyncio.create_task(large.transport.find(small.address))
            await until(lambda: large.transport._links.dials)
            large.dial(small)
            await small.transport.stop()
            with pytest.raises(TransportError, match="stopped"):
                await finding
            assert large.owner.downs == [(SMALL.node, "stopped")]

    run(test())


def test_the_first_tick_after_a_standstill_does_not_end_links() -> None:
    async def test() -> None:
        silent_s = limit(0.05)
        timing = Timing(silent_s=silent_s, ping_every_s=0.01, tick_s=0.01, linger_s=0.5)
        one, other = Endpoint(SMALL, timing=timing), Endpoint(LARGE, timing=timing)
        async with started(one, other):
            await linked(one, other)
            stand_still_until = asyncio.get_running_loop().time() + 6 * silent_s
            while asyncio.get_running_loop().time() < stand_still_until:
                pass
            heard = len(one.owner.rtts) + 3
            await until(lambda: len(one.owner.rtts) >= heard or one.owner.downs)
            assert one.owner.downs == other.owner.downs == []

    run(test())
