"""What a driver may rely on, whichever transport it stands on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from anabranch.core.ids import NodeId
from anabranch.live.transports import Transport, TransportError
from anabranch.live.transports.delayed import DelayedTransport, Way
from anabranch.live.transports.memory import MemoryHub, MemoryTransport
from anabranch.live.transports.websocket import WebSocketTransport
from live.transports.endpoints import LARGE, NETWORK, OPEN, QUICK, SMALL, Owner, run, until

Pair = tuple[Transport, Transport]


def websockets() -> Pair:
    one, other = (
        WebSocketTransport(identity, NETWORK, "127.0.0.1", timing=QUICK, limits=OPEN)
        for identity in (SMALL, LARGE)
    )
    return one, other


def memory(delay_s: float = 0.0) -> Pair:
    hub = MemoryHub()
    return MemoryTransport(SMALL.node, hub, delay_s), MemoryTransport(LARGE.node, hub, delay_s)


def delayed(pair: Pair) -> Pair:
    """The same two, as if they were far apart."""
    one, other = pair
    way, back = Way(0.01, 0.005), Way(0.005, 0.01)
    return DelayedTransport(one, {LARGE.node: way}), DelayedTransport(other, {SMALL.node: back})


TRANSPORTS: dict[str, tuple[Callable[[], Pair], str]] = {
    "websocket": (websockets, "asyncio"),
    "websocket-uvloop": (websockets, "uvloop"),
    "memory": (memory, "asyncio"),
    "memory-slow": (lambda: memory(0.01), "asyncio"),
    "memory-delayed": (lambda: delayed(memory()), "asyncio"),
    "websocket-delayed": (lambda: delayed(websockets()), "uvloop"),
}
ONE, OTHER = SMALL.node, LARGE.node


class Scene:
    """Two started transports and what their owners heard."""

    def __init__(self, pair: Pair) -> None:
        self.one, self.other = pair
        self.ear, self.other_ear = Owner(), Owner()

    async def link(self) -> None:
        self.one.dial(OTHER, self.other.address)
        await self.both_linked()

    async def both_linked(self) -> None:
        await until(lambda: OTHER in self.ear.links and ONE in self.other_ear.links)


@pytest.fixture(params=TRANSPORTS)
def play(request: pytest.FixtureRequest) -> Callable[..., None]:
    make, loop = TRANSPORTS[request.param]

    @asynccontextmanager
    async def scene() -> AsyncIterator[Scene]:
        made = Scene(make())
        await made.one.start(made.ear)
        await made.other.start(made.other_ear)
        yield made
        await made.one.stop()
        await made.other.stop()

    def play_it(test: Callable[[Scene], object]) -> None:
        async def played() -> None:
            async with scene() as made:
                await test(made)  # type: ignore[misc]

        run(played(), loop)

    return play_it


Play = Callable[[Callable[[Scene], object]], None]


def test_a_dial_is_answered_at_both_ends_but_never_at_once(play: Play) -> None:
    async def test(scene: Scene) -> None:
        scene.one.dial(OTHER, scene.other.address)
        assert scene.ear.ups == []
        await scene.both_linked()
        assert (scene.ear.ups, scene.other_ear.ups) == ([OTHER], [ONE])
        assert scene.ear.downs == scene.other_ear.downs == []
        assert scene.ear.links[OTHER].rtt_s is not None

    play(test)


def test_packets_of_one_turn_arrive_together_and_in_order(play: Play) -> None:
    async def test(scene: Scene) -> None:
        await scene.link()
        sent = [number.to_bytes(4) for number in range(1_000)]
        for packet in sent:
            scene.ear.links[OTHER].send(packet)
        await until(lambda: scene.other_ear.packets)
        assert scene.other_ear.batches == [sent]

    play(test)


def test_ten_thousand_packets_both_ways_keep_their_order(play: Play) -> None:
    async def test(scene: Scene) -> None:
        await scene.link()
        sent = [number.to_bytes(4) * (1 + number % 50) for number in range(10_000)]
        for start in range(0, len(sent), 100):
            for packet in sent[start : start + 100]:
                scene.ear.links[OTHER].send(packet)
                scene.other_ear.links[ONE].send(packet)
            await asyncio.sleep(0)
        await until(lambda: len(scene.other_ear.packets) == len(scene.ear.packets) == len(sent))
        assert scene.other_ear.packets == scene.ear.packets == sent

    play(test)


def test_a_closed_link_sends_what_was_queued_and_only_the_other_side_hears(play: Play) -> None:
    async def test(scene: Scene) -> None:
        await scene.link()
        link = scene.ear.links.pop(OTHER)
        link.send(b"last words")
        link.close("enough")
        link.send(b"too late")
        link.close("again")
        await until(lambda: scene.other_ear.downs)
        assert scene.other_ear.packets == [b"last words"]
        assert scene.other_ear.downs == [(ONE, "enough")]
        assert scene.ear.downs == []

    play(test)


def test_what_comes_after_close_is_not_heard(play: Play) -> None:
    async def test(scene: Scene) -> None:
        await scene.link()
        scene.other_ear.links[ONE].send(b"on its way")
        scene.ear.links.pop(OTHER).close("enough")
        await until(lambda: scene.other_ear.downs)
        # The owner asserts that packets come from linked nodes only.
        assert scene.ear.packets == []

    play(test)


def test_a_link_can_be_made_again_after_it_was_closed(play: Play) -> None:
    async def test(scene: Scene) -> None:
        for _ in range(5):
            await scene.link()
            scene.ear.links.pop(OTHER).close("enough")
        await scene.link()
        scene.ear.links[OTHER].send(b"hello")
        await until(lambda: scene.other_ear.packets == [b"hello"])
        assert len(scene.ear.ups) == 6

    play(test)


@pytest.mark.parametrize("case", ["no-address", "bad-address", "refused", "wrong-node"])
def test_a_dial_that_fails_says_why_later(play: Play, case: str) -> None:
    async def test(scene: Scene) -> None:
        nobody = NodeId(b"x" * 20)
        address = {"no-address": "", "bad-address": "nonsense"}.get(case, scene.other.address)
        if case == "refused":
            await scene.other.stop()
        scene.one.dial(nobody, address)
        assert scene.ear.downs == []
        await until(lambda: scene.ear.downs)
        assert scene.ear.downs == [(nobody, case)]
        assert scene.ear.ups == []

    play(test)


def test_dials_of_one_node_have_one_answer(play: Play) -> None:
    async def test(scene: Scene) -> None:
        for _ in range(3):
            scene.one.dial(OTHER, scene.other.address)
        await scene.both_linked()
        scene.one.dial(OTHER, scene.other.address)
        await scene.one.find(scene.other.address)
        assert (scene.ear.ups, scene.ear.downs) == ([OTHER], [])

    play(test)


def test_crossing_dials_end_in_one_link(play: Play) -> None:
    async def test(scene: Scene) -> None:
        for number in range(20):
            scene.one.dial(OTHER, scene.other.address)
            scene.other.dial(ONE, scene.one.address)
            await scene.both_linked()
            packet = b"round %d" % number
            scene.ear.links[OTHER].send(packet)
            scene.other_ear.links[ONE].send(packet)
            await until(lambda p=packet: p in scene.ear.packets and p in scene.other_ear.packets)
            scene.ear.links.pop(OTHER).close("next")
            await until(lambda: ONE not in scene.other_ear.links)
        assert scene.ear.ups == [OTHER] * 20
        assert scene.other_ear.ups == [ONE] * 20
        assert scene.ear.downs == []
        assert scene.other_ear.downs == [(ONE, "next")] * 20

    play(test)


def test_find_tells_of_the_link_before_it_returns(play: Play) -> None:
    async def test(scene: Scene) -> None:
        assert await scene.one.find(scene.other.address) == OTHER
        assert scene.ear.ups == [OTHER]
        assert await scene.one.find(scene.other.address) == OTHER
        assert scene.ear.ups == [OTHER]

    play(test)


def test_finds_and_dials_at_once_share_a_link(play: Play) -> None:
    async def test(scene: Scene) -> None:
        scene.one.dial(OTHER, scene.other.address)
        found = await asyncio.gather(*(scene.one.find(scene.other.address) for _ in range(5)))
        assert found == [OTHER] * 5
        await scene.both_linked()
        assert (scene.ear.ups, scene.other_ear.ups) == ([OTHER], [ONE])
        assert scene.ear.downs == scene.other_ear.downs == []

    play(test)


def test_find_says_what_to_do(play: Play) -> None:
    async def test(scene: Scene) -> None:
        with pytest.raises(TransportError, match="is not an address: write"):
            await scene.one.find("nonsense")
        with pytest.raises(TransportError, match="own address"):
            await scene.one.find(scene.one.address)
        await scene.other.stop()
        with pytest.raises(TransportError, match="nothing listens at"):
            await scene.one.find(scene.other.address)
        assert (scene.ear.ups, scene.ear.downs) == ([], [])

    play(test)


def test_stop_sends_what_is_queued_and_the_others_hear_of_the_end(play: Play) -> None:
    async def test(scene: Scene) -> None:
        await scene.link()
        for number in range(100):
            scene.ear.links[OTHER].send(bytes([number]) * 10_000)
        await scene.one.stop()
        await until(lambda: scene.other_ear.downs)
        assert len(scene.other_ear.packets) == 100
        assert scene.other_ear.downs == [(ONE, "stopped")]
        assert scene.ear.downs == []

    play(test)


def test_the_round_trip_is_told(play: Play) -> None:
    async def test(scene: Scene) -> None:
        await scene.link()
        await until(lambda: scene.ear.rtts and scene.other_ear.rtts)
        assert scene.ear.rtts[0] == scene.ear.links[OTHER].rtt_s

    play(test)
