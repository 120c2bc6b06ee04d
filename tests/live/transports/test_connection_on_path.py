"""A link through an attacker: what it forges, alters, repeats, moves or withholds ends the link.

Packets go from the dialler to the acceptor, one message each unless a test says otherwise.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from anabranch.core import codec
from anabranch.core.frames import HEAD
from anabranch.core.link_mac import MAC_BYTES
from anabranch.core.messages import Leave, Meet
from anabranch.live.transports.batches import COVERED_BYTES, ECHO, LENGTH_BYTES
from anabranch.live.transports.timing import Timing
from live.tap import BINARY, PING, PONG, Edit, Frame, Tap, tapped
from live.transports.endpoints import ANSWER, LARGE, SMALL, Endpoint, run, started, until
from machines import PART, SIGNERS, Chain, packet

LEAVE = codec.encode(Leave(PART))


class Path:
    """Numbers the messages from the dialler that hold packets, and changes some of them."""

    def __init__(self, change: Callable[[int, Frame], list[Frame]]) -> None:
        self.seen: list[Frame] = []
        self._change = change
        self._handshake = 2  # messages of the dialler's that come first

    def edit(self, frame: Frame) -> list[Frame]:
        if frame.opcode != BINARY or not frame.from_dialler:
            return [frame]
        if self._handshake:
            self._handshake -= 1
            return [frame]
        if frame.payload.startswith(ECHO):
            return [frame]
        self.seen.append(frame)
        return self._change(len(self.seen), frame)


@asynccontextmanager
async def tapped_link(
    edit: Edit, timing: Timing | None = None
) -> AsyncIterator[tuple[Endpoint, Endpoint, Tap]]:
    """Open a link through an attacker's hands: the dialler, the acceptor, the attacker."""
    more = {} if timing is None else {"timing": timing}
    dialler, acceptor = Endpoint(LARGE, **more), Endpoint(SMALL, **more)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(started(dialler, acceptor))
        port = int(acceptor.address.rpartition(":")[2])
        tap = await stack.enter_async_context(tapped(port, edit))
        dialler.transport.dial(acceptor.node, f"ws://127.0.0.1:{tap.port}")
        await until(lambda: dialler.owner.links and acceptor.owner.links)
        yield dialler, acceptor, tap


async def send(sender: Endpoint, receiver: Endpoint, *packets: bytes) -> None:
    """Send packets in messages of their own, while the link stands."""
    for each in packets:
        link = sender.owner.links.get(receiver.node)
        if link is None:
            return
        link.send(each)
        sender.transport.hasten()
        await asyncio.sleep(0)


def attacked(
    change: Callable[[int, Frame], list[Frame]], sent: list[bytes], received: list[bytes]
) -> None:
    """See that the acceptor gets just these packets, and then ends the link for its MAC."""

    async def test() -> None:
        path = Path(change)
        async with tapped_link(path.edit) as (dialler, acceptor, _):
            await send(dialler, acceptor, *sent)
            await until(lambda: acceptor.owner.downs)
            assert acceptor.owner.downs == [(LARGE.node, "bad-mac")]
            assert acceptor.owner.packets == received
            await until(lambda: dialler.owner.downs)
            assert dialler.owner.downs == [(SMALL.node, "bad-mac")]

    run(test())


def flipped(payload: bytes, at: int) -> bytes:
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


def altering(at: int) -> Callable[[int, Frame], list[Frame]]:
    """Alter one byte of the second message."""

    def change(number: int, frame: Frame) -> list[Frame]:
        return [frame._replace(payload=flipped(frame.payload, at)) if number == 2 else frame]

    return change


# --- Whole messages -------------------------------------------------------------------------


def test_a_link_works_through_a_path_that_changes_nothing() -> None:
    async def test() -> None:
        path = Path(lambda number, frame: [frame])
        async with tapped_link(path.edit) as (dialler, acceptor, _):
            await send(dialler, acceptor, b"one", b"two", LEAVE)
            await until(lambda: len(acceptor.owner.packets) == 3)
            assert acceptor.owner.packets == [b"one", b"two", LEAVE]
            assert len(path.seen) == 3

    run(test())


def test_a_repeated_message_ends_the_link() -> None:
    attacked(lambda number, frame: [frame, frame], [b"one"], [b"one"])


def test_a_message_repeated_later_ends_the_link() -> None:
    seen: list[Frame] = []

    def change(number: int, frame: Frame) -> list[Frame]:
        seen.append(frame)
        return [frame, seen[0]] if number == 3 else [frame]

    attacked(change, [b"one", b"two", b"three"], [b"one", b"two", b"three"])


def test_messages_that_changed_places_end_the_link() -> None:
    held: list[Frame] = []

    def change(number: int, frame: Frame) -> list[Frame]:
        if number == 2:
            held.append(frame)
            return []
        return [frame, *held]

    attacked(change, [b"one", b"two", b"three"], [b"one"])


def test_the_message_after_a_dropped_one_ends_the_link() -> None:
    attacked(
        lambda number, frame: [] if number == 2 else [frame], [b"one", b"two", b"three"], [b"one"]
    )


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        bytes(MAC_BYTES),
        len(LEAVE).to_bytes(4) + LEAVE,
        len(LEAVE).to_bytes(4) + LEAVE + bytes(MAC_BYTES),
        ECHO + b"\0" + bytes(8),
        ECHO + b"\0" + bytes(8 + MAC_BYTES),
        (100_000).to_bytes(4) + b"of another length" + bytes(MAC_BYTES),
    ],
)
def test_a_forged_message_ends_the_link(forged: bytes) -> None:
    async def test() -> None:
        async with tapped_link(lambda frame: [frame]) as (dialler, acceptor, tap):
            await send(dialler, acceptor, b"one")
            await until(lambda: acceptor.owner.packets)
            tap.insert(Frame(BINARY, forged, from_dialler=True))
            await until(lambda: acceptor.owner.downs)
            assert acceptor.owner.downs == [(LARGE.node, "bad-mac")]
            assert acceptor.owner.packets == [b"one"]

    run(test())


def test_a_message_that_is_returned_to_its_sender_ends_the_link() -> None:
    async def test() -> None:
        path = Path(lambda number, frame: [frame._replace(from_dialler=False)])
        async with tapped_link(path.edit) as (dialler, acceptor, _):
            await send(dialler, acceptor, b"one")
            await until(lambda: dialler.owner.downs)
            assert dialler.owner.downs == [(SMALL.node, "bad-mac")]
            assert dialler.owner.packets == acceptor.owner.packets == []

    run(test())


def test_a_message_of_another_link_of_the_same_nodes_ends_the_link() -> None:
    async def test() -> None:
        path = Path(lambda number, frame: [frame])
        async with tapped_link(path.edit) as (dialler, acceptor, _):
            await send(dialler, acceptor, b"one")
            await until(lambda: acceptor.owner.packets)
        earlier = path.seen[0]
        path = Path(lambda number, frame: [earlier])
        async with tapped_link(path.edit) as (dialler, acceptor, _):
            await send(dialler, acceptor, b"one")
            await until(lambda: acceptor.owner.downs)
            assert acceptor.owner.downs == [(LARGE.node, "bad-mac")]
            assert acceptor.owner.packets == []

    run(test())


# --- Bytes of a message ---------------------------------------------------------------------


@pytest.mark.parametrize("at", range(LENGTH_BYTES + len(LEAVE) + MAC_BYTES))
def test_any_altered_byte_of_a_control_message_ends_the_link(at: int) -> None:
    attacked(altering(at), [b"one", LEAVE, b"three"], [b"one"])


FRAME = Chain(SIGNERS[5]).frame()
DATA = packet(FRAME, route=b"\2route")
START = LENGTH_BYTES + 4 + len(b"\2route")  # of the frame


@pytest.mark.parametrize(
    "at",
    [
        *range(LENGTH_BYTES + 3, START + 1),  # the route's length, the route
        *(LENGTH_BYTES + 2, START + HEAD.size - 1),  # the overlay, the head's last byte
        *(START + HEAD.size + 3, LENGTH_BYTES + len(DATA) - 1),  # the body, the signature
    ],
)
def test_any_altered_byte_of_a_data_message_ends_the_link(at: int) -> None:
    attacked(altering(at), [b"one", DATA, b"three"], [b"one"])


def test_frames_that_changed_places_in_a_message_end_the_link() -> None:
    async def test() -> None:
        chain = Chain(SIGNERS[5])
        first, second = packet(chain.frame()), packet(chain.frame())
        assert len(first) == len(second)

        def change(number: int, frame: Frame) -> list[Frame]:
            size = LENGTH_BYTES + len(first)
            one, other, tag = (
                *(frame.payload[:size], frame.payload[size : 2 * size]),
                frame.payload[2 * size :],
            )
            return [frame._replace(payload=other + one + tag)]

        path = Path(change)
        async with tapped_link(path.edit) as (dialler, acceptor, _):
            dialler.link(acceptor).send(first, second)
            await until(lambda: acceptor.owner.downs)
            assert len(path.seen) == 1
            assert acceptor.owner.downs == [(LARGE.node, "bad-mac")]
            assert acceptor.owner.packets == []

    run(test())


# --- Large packets --------------------------------------------------------------------------

LARGE_DATA = codec.carry_head(1, b"\2route") + bytes(3 * COVERED_BYTES)
LARGE_CONTROL = codec.encode(Meet(PART))[:2] + bytes(3 * COVERED_BYTES)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("large", "at"),
    [
        (LARGE_DATA, 0),  # its length
        (LARGE_DATA, LENGTH_BYTES + 5),  # its route
        (LARGE_DATA, LENGTH_BYTES + COVERED_BYTES - 1),
        (LARGE_CONTROL, LENGTH_BYTES + COVERED_BYTES),
        (LARGE_CONTROL, LENGTH_BYTES + len(LARGE_CONTROL) - 1),
    ],
)
def test_an_altered_large_packet_ends_the_link(large: bytes, at: int, alone: bool) -> None:
    async def test() -> None:
        def change(number: int, frame: Frame) -> list[Frame]:
            assert len(frame.payload) > len(large)
            return [frame._replace(payload=flipped(frame.payload, at))]

        async with tapped_link(Path(change).edit) as (dialler, acceptor, _):
            dialler.link(acceptor).send(*([large] if alone else [large, b"and more"]))
            await until(lambda: acceptor.owner.downs)
            assert acceptor.owner.downs == [(LARGE.node, "bad-mac")]
            assert acceptor.owner.packets == []

    run(test())


@pytest.mark.parametrize("alone", [True, False])
def test_the_end_of_a_large_frame_is_left_to_its_signature(alone: bool) -> None:
    async def test() -> None:
        def change(number: int, frame: Frame) -> list[Frame]:
            return [frame._replace(payload=flipped(frame.payload, LENGTH_BYTES + COVERED_BYTES))]

        sent = [LARGE_DATA] if alone else [LARGE_DATA, b"and more"]
        async with tapped_link(Path(change).edit) as (dialler, acceptor, _):
            dialler.link(acceptor).send(*sent)
            await until(lambda: acceptor.owner.packets)
            assert acceptor.owner.packets == [flipped(LARGE_DATA, COVERED_BYTES), *sent[1:]]
            assert acceptor.owner.downs == []

    run(test())


# --- Silence and delay ----------------------------------------------------------------------


def test_a_link_ends_though_the_attacker_answers_for_the_silent_side() -> None:
    async def test() -> None:
        silent = False

        def edit(frame: Frame) -> list[Frame]:
            if not silent:
                return [frame]
            if frame.opcode != BINARY:
                return []
            # Nothing of either side passes, and each is told that the other one lives.
            return [Frame(PONG, frame.payload[:64], one) for one in (True, False)] + [
                Frame(PING, b"alive", one) for one in (True, False)
            ]

        timing = Timing(silent_s=0.3, ping_every_s=0.05, tick_s=0.01, linger_s=0.5)
        async with tapped_link(edit, timing) as (dialler, acceptor, _):
            await until(lambda: dialler.owner.rtts and acceptor.owner.rtts)
            silent = True
            await until(lambda: dialler.owner.downs and acceptor.owner.downs)
            [(_, one)], [(_, other)] = dialler.owner.downs, acceptor.owner.downs
            # The first that gives up cuts the socket, perhaps before the other has given up.
            assert {one, other} in ({"timeout"}, {"timeout", "lost"})

    run(test())


def test_a_delay_on_the_path_shows_in_the_round_trip_however_long_it_is() -> None:
    async def test() -> None:
        # Each echo takes longer than the next request is away.
        timing = Timing(ping_every_s=0.1, tick_s=0.01, linger_s=0.5)
        async with tapped_link(lambda frame: [frame], timing) as (dialler, acceptor, tap):
            await until(lambda: dialler.owner.rtts)
            tap.delay_s = 0.25
            await until(lambda: dialler.owner.rtts[-1] >= tap.delay_s)
            assert dialler.owner.downs == acceptor.owner.downs == []

    run(test())


def test_an_echo_cannot_be_answered_early_by_the_attacker() -> None:
    async def test() -> None:
        hurried = False

        def edit(frame: Frame) -> list[Frame]:
            if not hurried or not frame.from_dialler or not frame.payload.startswith(ECHO + b"\0"):
                return [frame]
            return [Frame(BINARY, ANSWER + frame.payload[5:], from_dialler=False), frame]

        timing = Timing(ping_every_s=0.1, tick_s=0.01, linger_s=0.5)
        async with tapped_link(edit, timing) as (dialler, _, _):
            hurried = True
            await until(lambda: dialler.owner.downs)
            assert dialler.owner.downs == [(SMALL.node, "bad-mac")]

    run(test())
