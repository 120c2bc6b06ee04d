"""One connection: what a hostile peer may say, what waits for a slow one, and how it ends."""

import asyncio
import os

import pytest
from picows import WSCloseCode, WSMsgType

from anabranch.core.codec import MAX_PACKET_BYTES, PROTOCOL_VERSION
from anabranch.core.handshake import Dialling, Hello, Proof, encode
from anabranch.core.identity import KnownKeys
from anabranch.live.transports import connection
from anabranch.live.transports.batches import ECHO, MAX_MESSAGE_BYTES
from anabranch.live.transports.connection import (
    HIGH_MARK_BYTES,
    LOW_MARK_BYTES,
    MAX_QUEUED_BYTES,
    Timing,
)
from live.transports.endpoints import (
    ANSWER,
    LARGE,
    LOOPS,
    MIDDLE,
    NETWORK,
    REQUEST,
    SMALL,
    Endpoint,
    RawClient,
    linked,
    proved_client,
    raw_client,
    run,
    silent_address,
    started,
    until,
)
from support.waiting import limit

both_loops = pytest.mark.parametrize("loop", LOOPS)
NONCE, KEY = b"d" * 32, b"k" * 32


# --- Opening --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (encode(Hello(b"o" * 32, LARGE.node, NONCE, KEY)), "wrong-network"),
        (encode(Hello(NETWORK, LARGE.node, NONCE, KEY, MIDDLE.node)), "wrong-node"),
        (encode(Hello(NETWORK, SMALL.node, NONCE, KEY)), "self-dial"),
        (b"\1 of another version", "protocol-version"),
        (bytes([PROTOCOL_VERSION]) + b"garbage", "malformed"),
        (encode(Proof(bytes(64))), "handshake-order"),
        (bytes(1000), "handshake-size"),
    ],
)
def test_a_bad_hello_is_refused_in_a_word(first: bytes, reason: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await raw_client(home.address)
            client.say(first)
            await until(lambda: client.gone)
            assert client.closed == (1008, reason)
            assert client.heard == []
            assert (home.owner.ups, home.owner.downs) == ([], [])

    run(test())


def test_a_forged_proof_is_refused() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await raw_client(home.address)
            client.say(Dialling(LARGE, NETWORK, os.urandom, None).open())
            await client.answer(1)
            client.say(encode(Proof(MIDDLE.sign(bytes(32)))))
            await until(lambda: client.gone)
            assert client.closed == (1008, "bad-proof")
            assert home.owner.ups == []

    run(test())


def test_what_was_said_to_open_one_link_does_not_open_another() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await raw_client(home.address)
            opening = Dialling(LARGE, NETWORK, os.urandom, None)
            client.say(opening.open())
            _, proof = opening.prove(await client.answer(1), KnownKeys().verify)
            client.say(proof)
            await client.answer(2)
            client.socket.disconnect()
            await until(lambda: home.owner.downs)
            repeated = await raw_client(home.address)
            repeated.say(opening.open())
            await repeated.answer(1)
            repeated.say(proof)
            await until(lambda: repeated.gone)
            assert repeated.closed == (1008, "bad-proof")
            assert home.owner.ups == [LARGE.node]

    run(test())


def test_who_says_nothing_is_shown_out() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(dial_s=0.1, tick_s=0.01, linger_s=0.5))
        async with started(home):
            client = await raw_client(home.address)
            await until(lambda: client.gone)
            assert client.closed == (1000, "timeout")

    run(test())


@both_loops
def test_a_dial_that_nobody_answers_fails_in_time(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(dial_s=0.1, tick_s=0.01))
        with silent_address() as silent:
            async with started(home):
                home.transport.dial(LARGE.node, silent)
                await until(lambda: home.owner.downs)
                assert home.owner.downs == [(LARGE.node, "timeout")]

    run(test(), loop)


def test_both_ends_know_a_round_trip_when_the_link_stands() -> None:
    async def test() -> None:
        one, other = Endpoint(SMALL), Endpoint(LARGE)
        async with started(one, other):
            await linked(one, other)
            for owner in (one.owner, other.owner):
                (link,) = owner.links.values()
                assert link.rtt_s is not None
                assert link.rtt_s > 0

    run(test())


# --- Hostile frames -------------------------------------------------------------------------


def say_text(client: RawClient) -> None:
    client.say(b"hello", WSMsgType.TEXT)


def say_fragments(client: RawClient) -> None:
    client.say(b"\0\0\0\1", fin=False)
    client.say(b"x", WSMsgType.CONTINUATION)


def say_too_much(client: RawClient) -> None:
    client.say(bytes(MAX_MESSAGE_BYTES + 1))


def say_bad_length(client: RawClient) -> None:
    client.say_tagged(b"\0\0\0\1x\0\0\0\2x")


def say_great_packet(client: RawClient) -> None:
    client.say_tagged((MAX_PACKET_BYTES + 1).to_bytes(4) + bytes(MAX_PACKET_BYTES + 1))


def say_nonsense(client: RawClient) -> None:
    client.socket.underlying_transport.write(b"\xff\xff\xff\xff")


def leave_politely(client: RawClient) -> None:
    client.socket.send_close(WSCloseCode.OK, b"moving-on")


def leave_rudely(client: RawClient) -> None:
    client.socket.send_close(WSCloseCode.OK, b"<b>Not a word!</b>")


def vanish(client: RawClient) -> None:
    client.socket.disconnect(False)


@both_loops
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (say_text, "text-message"),
        (say_fragments, "fragments"),
        (say_too_much, "message-size"),
        (say_bad_length, "packet-length"),
        (say_great_packet, "packet-length"),
        (say_nonsense, "websocket-protocol"),
        (leave_politely, "moving-on"),
        (leave_rudely, "closed"),
        (vanish, "lost"),
    ],
)
def test_a_link_ends_with_a_reason(act: object, reason: str, loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.say_packets(b"fine")
            act(client)  # type: ignore[operator]
            if act is not vanish:
                client.say_packets(b"late")
            await until(lambda: home.owner.downs)
            assert home.owner.downs == [(LARGE.node, reason)]
            assert b"late" not in home.owner.packets
            # A reset may overtake what was said before it, a protocol error may hide it.
            assert home.owner.packets in ([b"fine"], [])

    run(test(), loop)


def test_a_mistake_of_the_owner_is_not_swallowed() -> None:
    async def test() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
        home = Endpoint(SMALL)

        def fail(*_: object) -> None:
            raise AssertionError("our own mistake")

        async with started(home):
            client = await proved_client(home.address, LARGE)
            home.owner.received = fail  # type: ignore[method-assign]
            client.say_packets(b"x")
            await until(lambda: client.gone)
            assert client.closed == (1011, "internal-error")
            assert "our own mistake" in str(complaints)

    run(test())


# --- Queues ---------------------------------------------------------------------------------


@both_loops
def test_a_peer_that_does_not_read_is_told_of_once_each_way(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            reading = client.socket.underlying_transport
            link = home.owner.links[LARGE.node]
            for expected in (1, 2):
                reading.pause_reading()
                sent = 0
                while len(home.owner.pressure) < 2 * expected - 1:
                    link.send(bytes(100_000))
                    sent += 1
                    await asyncio.sleep(0)
                for _ in range(20):  # further than the mark: it is not told again
                    link.send(bytes(100_000))
                    await asyncio.sleep(0)
                assert home.owner.pressure == ["congested", "writable"] * (expected - 1) + [
                    "congested"
                ]
                reading.resume_reading()
                await until(lambda e=expected: len(home.owner.pressure) == 2 * e)
                assert home.owner.pressure == ["congested", "writable"] * expected
            assert home.owner.downs == []

    run(test(), loop)


@both_loops
def test_a_queue_that_grows_too_long_costs_the_link(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.socket.underlying_transport.pause_reading()
            link = home.owner.links[LARGE.node]
            queued = 0
            while not home.owner.downs:
                link.send(bytes(500_000))
                queued += 500_000
                await asyncio.sleep(0)
                assert queued < 3 * MAX_QUEUED_BYTES
            assert home.owner.downs == [(LARGE.node, "link-full")]
            assert home.owner.pressure == ["congested"]
            assert queued > MAX_QUEUED_BYTES
            client.socket.underlying_transport.resume_reading()
            await until(lambda: client.gone)

    run(test(), loop)


def test_a_queue_that_overflows_in_one_turn_is_told_of_later() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            link = home.owner.links[LARGE.node]
            for _ in range(1 + MAX_QUEUED_BYTES // 500_000):
                link.send(bytes(500_000))
            link.send(b"ignored")
            assert home.owner.downs == []  # the owner is still speaking
            await until(lambda: client.gone)
            assert home.owner.downs == [(LARGE.node, "link-full")]
            assert len(client.heard) == 2  # of the handshake: what was too much was dropped

    run(test())


def test_the_marks_are_in_order() -> None:
    assert LOW_MARK_BYTES < HIGH_MARK_BYTES < MAX_QUEUED_BYTES


def test_a_flood_of_echo_requests_that_are_never_read_costs_the_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_QUEUED_BYTES", 1 << 16)

    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.socket.underlying_transport.pause_reading()
            while not home.owner.downs:
                for _ in range(1_000):
                    client.say_tagged(REQUEST + bytes(8))
                await asyncio.sleep(0)
            assert home.owner.downs == [(LARGE.node, "link-full")]
            client.socket.disconnect(False)
            await until(lambda: client.gone)

    run(test())


def test_a_flood_of_pings_that_are_never_read_costs_the_link() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.socket.underlying_transport.pause_reading()
            flood = b"".join(b"\x89\xfd\0\0\0\0" + bytes(125) for _ in range(1_000))
            while not home.owner.downs:
                client.socket.underlying_transport.write(flood)
                await asyncio.sleep(0)
            assert home.owner.downs == [(LARGE.node, "link-full")]
            client.socket.disconnect(False)
            await until(lambda: client.gone)

    run(test())


# --- Life -----------------------------------------------------------------------------------


@both_loops
def test_a_peer_that_falls_silent_is_given_up(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(silent_s=0.1, ping_every_s=0.03, tick_s=0.01))
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.socket.underlying_transport.pause_reading()  # and so it answers no ping
            await until(lambda: home.owner.downs)
            assert home.owner.downs == [(LARGE.node, "timeout")]
            client.socket.underlying_transport.resume_reading()
            await until(lambda: client.gone)

    run(test(), loop)


def test_pings_keep_an_idle_link_alive_and_measure_it() -> None:
    async def test() -> None:
        timing = Timing(silent_s=limit(0.2), ping_every_s=0.02, tick_s=0.01)
        one, other = Endpoint(SMALL, timing=timing), Endpoint(LARGE, timing=timing)
        async with started(one, other):
            await linked(one, other)
            await until(lambda: len(one.owner.rtts) > 30 and len(other.owner.rtts) > 30)
            assert one.owner.downs == other.owner.downs == []
            assert one.link(other).rtt_s == one.owner.rtts[-1]
            assert all(0 < rtt < 10 for rtt in one.owner.rtts)

    run(test())


def test_an_echo_that_answers_no_request_measures_nothing() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE, echo=False)
            for payload in (bytes(8), b"\xff" * 8):
                client.say_tagged(ANSWER + payload)
            client.say_packets(b"done")
            await until(lambda: home.owner.packets)
            assert home.owner.rtts == []

    run(test())


def test_an_echo_measures_once_and_late_ones_measure_too() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(ping_every_s=0.05, tick_s=0.01))
        async with started(home):
            client = await proved_client(home.address, LARGE, echo=False)
            await until(lambda: len(client.asked) == 3)  # nothing was answered yet
            for payload in (client.asked[0], client.asked[1], client.asked[0], client.asked[1]):
                client.say_tagged(ANSWER + payload)
            client.say_packets(b"done")
            await until(lambda: home.owner.packets)
            assert len(home.owner.rtts) == 2

    run(test())


@pytest.mark.parametrize("echo", [ECHO, ECHO + b"\2" + bytes(8), REQUEST, ANSWER + bytes(9)])
def test_an_echo_of_another_shape_costs_the_link(echo: bytes) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.say_tagged(echo)
            await until(lambda: client.gone)
            assert client.closed == (1008, "packet-length")

    run(test())


def test_pings_and_pongs_of_the_websocket_are_answered_and_prove_no_life() -> None:
    async def test() -> None:
        timing = Timing(silent_s=0.2, ping_every_s=0.05, tick_s=0.01)
        home = Endpoint(SMALL, timing=timing)
        async with started(home):
            client = await proved_client(home.address, LARGE, echo=False)
            while not home.owner.downs:
                client.socket.send_ping(b"are you there")
                client.socket.send_pong(b"I am")
                await asyncio.sleep(0.01)
            assert home.owner.downs == [(LARGE.node, "timeout")]
            assert set(client.pongs) == {b"are you there"}
            assert home.owner.rtts == []

    run(test())


@both_loops
def test_a_peer_that_does_not_say_goodbye_is_cut_off(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(linger_s=0.05, tick_s=0.01))
        async with started(home):
            client = await proved_client(home.address, LARGE)
            client.socket.underlying_transport.pause_reading()
            link = home.owner.links.pop(LARGE.node)
            for _ in range(20):
                link.send(bytes(500_000))
            link.close("enough")
            await until(lambda: home.transport.sizes()["wires"] == 0)
            assert home.owner.downs == []
            client.socket.disconnect(False)
            await until(lambda: client.gone)

    run(test(), loop)
