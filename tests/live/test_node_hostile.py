"""A hostile neighbour over real sockets: nothing wrong is delivered, and honest traffic goes on."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from anabranch import Network, Stream
from anabranch.core import codec, frames
from anabranch.core.ids import NodeId, number_of, show, stream_part
from anabranch.core.incoming import MAX_SKEW_S
from anabranch.core.messages import Contact, Instruction, Meet
from anabranch.core.messages.storage import Resent
from anabranch.core.parts import JOIN_WINDOW_S
from anabranch.live.keys import new_key
from anabranch.live.transports.batches import MAX_MESSAGE_BYTES
from live.hostile_peer import HostilePeer, carry, make_frame
from live.networks import LiveNetwork, eventually, live_network, neighbours, run
from live.readers import Reader, read, read_everywhere

HONEST = 3


def number_at(seconds_ahead: float = 0.0) -> int:
    """Return the number of a message that is published now, or at another time."""
    return number_of(int((time.time() + seconds_ahead) * 1000), 0)


class Siege:
    """Honest nodes that all read a stream, and hostile peers that are neighbours of all of them."""

    def __init__(self, live: LiveNetwork, nodes: list[Network], stream: Stream) -> None:
        self.live = live
        self.nodes = nodes
        self.stream = stream
        self.readers: list[Reader] = []
        self.hostile: list[HostilePeer] = []
        self.expected: list[str] = []  # what everybody is to be delivered

    @property
    def owner(self) -> NodeId:
        return self.live.owner.node

    async def hear(self, text: str) -> None:
        """Wait until everybody has been delivered one more text, and nothing else ever."""
        self.expected.append(text)
        await eventually(
            lambda: all(text in reader.contents for reader in self.readers), f"delivery of {text!r}"
        )
        for reader in self.readers:
            assert reader.contents == self.expected

    async def publish(self, text: str) -> None:
        """See that honest traffic goes on."""
        await self.stream.publish(text)
        await self.hear(text)

    async def dropped(self, reason: str, count: int, nodes: list[Network]) -> None:
        """Wait until each of these nodes has dropped so many frames for a reason."""
        name = f"{self.stream.id}#0"

        def so_many(node: Network) -> bool:
            counted = node.metrics["parts"].get(name)
            if counted is None:
                return False  # nothing has come yet
            duplicates = {"duplicate": counted["duplicates"]}
            return bool((counted["dropped"] | duplicates).get(reason, 0) >= count)

        await eventually(lambda: all(map(so_many, nodes)), f"{count} frames dropped: {reason}")


@asynccontextmanager
async def besieged(folder: Path, hostile: int = 1) -> AsyncIterator[Siege]:
    """Let hostile peers take their places among honest nodes."""
    async with live_network(folder) as live, AsyncExitStack() as stack:
        nodes = [await live.join() for _ in range(HONEST)]
        stream = await nodes[0].create_stream("besieged", public="subscribe")
        siege = Siege(live, nodes, stream)
        siege.readers = await read_everywhere(nodes, stream.id)
        await eventually(
            lambda: all(neighbours(node, stream.id) == HONEST - 1 for node in nodes), "neighbours"
        )
        for number in range(hostile):
            peer = await stack.enter_async_context(HostilePeer(live, stream.id))
            await peer.take_place(HONEST + number)
            siege.hostile.append(peer)
        await siege.publish("before")
        yield siege


# --- What costs the link --------------------------------------------------------------------


def unsigned(siege: Siege, text: str = "forged") -> bytes:
    """Make a frame in the owner's name without a signature."""
    texts = [(number_at(), text)]
    return make_frame(siege.hostile[0].part, siege.owner, lambda _: bytes(64), texts)


def usurped(siege: Siege) -> bytes:
    """Make a frame in the owner's name that somebody else has signed."""
    hostile = siege.hostile[0]
    return make_frame(hostile.part, siege.owner, hostile.identity.sign, [(number_at(), "forged")])


def altered(siege: Siege) -> bytes:
    """Make a frame that the owner has signed with another text."""
    part = siege.hostile[0].part
    frame = make_frame(part, siege.owner, siege.live.owner.sign, [(number_at(), "honest")])
    return frame.replace(b"honest", b"forged")


@pytest.mark.parametrize("forge", [unsigned, usurped, altered])
def test_a_forged_frame_costs_the_link(tmp_path: Path, forge: Callable[[Siege], bytes]) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], victim = siege.hostile, siege.nodes[1]
            hostile.send(victim.node.node, carry(forge(siege)))
            assert await hostile.end_of(victim.node.node) == "forged"
            address = victim.node.address
            assert await hostile.come_again(victim.node.node, address) == "banned"
            assert victim.metrics["notices"]["fault"] == 1
            await siege.publish("after")
            # Nobody else has been sent anything wrong.
            others = {node.node.node for node in siege.nodes if node is not victim}
            assert others <= set(hostile.links)

    run(main())


def malformed() -> dict[str, tuple[bytes, str]]:
    """Return packets that nobody may send, each with the reason that ends the link."""
    part, signer = stream_part(f"0x{'0' * 40}/any"), new_key()[0]
    frame = make_frame(part, signer.node, signer.sign, [(number_at(), "text")])
    head = frames.HEAD.size
    short = carry(frame)[:-1]
    backwards = bytearray(frame)
    backwards[45:53] = b"\xff" * 8  # the message before it
    version = bytes([codec.PROTOCOL_VERSION])
    control, bulk = version + bytes([codec.CONTROL]), version + bytes([codec.BULK])
    small, large = codec.encode(Meet(part)), codec.encode(Resent(1))
    return {
        "one byte": (version, "packet-size"),
        "another version": (b"\x09\x00\x80", "protocol-version"),
        "neither control nor data": (version + b"\x07\x00", "packet-kind"),
        "no msgpack": (control + b"\xc1", "malformed"),
        "an unknown message": (control + b"\x91\x63", "malformed"),
        "fields that are missing": (control + b"\x91\x01", "malformed"),
        "a tower of arrays": (control + b"\x91" * 10_000, "malformed"),
        "too much control": (control + bytes(codec.MAX_CONTROL_BYTES), "packet-size"),
        "bulk that is no msgpack": (bulk + b"\xc1", "malformed"),
        "a small message in a bulk packet": (bulk + small[2:], "malformed"),
        "a bulk message in a small packet": (control + large[2:], "malformed"),
        "data without a frame": (codec.DATA_HEAD + b"\x01\x00", "packet-size"),
        "a route that is too long": (codec.DATA_HEAD + b"\x01\xff" + bytes(300), "route-size"),
        "half a head": (codec.DATA_HEAD + b"\x01\x01\x01" + frame[: head // 2], "frame-size"),
        "a frame of another version": (carry(b"\x09" + frame[1:]), "frame-version"),
        "a frame that was cut short": (short, "frame-length"),
        "numbers that go backwards": (carry(bytes(backwards)), "frame-numbers"),
    }


def test_malformed_packets_cost_the_link_whatever_is_wrong_with_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path, hostile=0) as siege:
            victim = siege.nodes[1].node
            reasons = {}
            for name, (packet, _) in malformed().items():
                async with HostilePeer(siege.live, siege.stream.id) as hostile:
                    await hostile.reach(victim.address)
                    hostile.send(victim.node, packet)
                    reasons[name] = await hostile.end_of(victim.node)
                    assert await hostile.come_again(victim.node, victim.address) == "banned"
            assert reasons == {name: reason for name, (_, reason) in malformed().items()}
            assert siege.nodes[1].metrics["notices"]["fault"] == len(reasons)
            await siege.publish("after")

    run(main())


def test_messages_that_are_no_batch_of_packets_cost_the_link(tmp_path: Path) -> None:
    raw = [b"", b"\x00\x00\x00\x00", b"\x00\x00\x00\x09short", bytes(MAX_MESSAGE_BYTES + 1)]

    async def main() -> None:
        async with besieged(tmp_path, hostile=0) as siege:
            victim = siege.nodes[1].node
            for message in raw:
                async with HostilePeer(siege.live, siege.stream.id) as hostile:
                    await hostile.reach(victim.address)
                    hostile.send_raw(victim.node, message)
                    await hostile.end_of(victim.node)
                    gone = lambda node=hostile.node: node not in victim.driver.links  # noqa: E731
                    await eventually(gone, "the victim has let go of the link as well")
            await siege.publish("after")

    run(main())


def test_a_frame_for_another_overlay_costs_the_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], victim = siege.hostile, siege.nodes[1].node
            frame = make_frame(
                hostile.part, siege.owner, siege.live.owner.sign, [(number_at(), "astray")]
            )
            hostile.send(victim.node, carry(frame, overlay=99))
            assert await hostile.end_of(victim.node) == "wrong-overlay"
            await siege.publish("after")

    run(main())


# --- What is only dropped -------------------------------------------------------------------


def test_a_forgery_that_comes_first_does_not_censor_the_real_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path, hostile=2) as siege:
            forger, carrier = siege.hostile
            number = number_at()
            real = make_frame(carrier.part, siege.owner, siege.live.owner.sign, [(number, "real")])
            forged = make_frame(forger.part, siege.owner, forger.identity.sign, [(number, "fake")])
            assert frames.peek(real) == frames.peek(forged)
            for node in siege.nodes:
                forger.send(node.node.node, carry(forged))
            for node in siege.nodes:
                assert await forger.end_of(node.node.node) == "forged"
            carrier.send(siege.nodes[1].node.node, carry(real))
            await siege.hear("real")
            await siege.publish("after")

    run(main())


def test_replays_are_delivered_to_nobody_and_cost_no_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile] = siege.hostile
            for number in range(5):
                await siege.publish(f"message {number}")
            await eventually(lambda: len(hostile.carried) >= 6, "something to replay")
            replay = hostile.carried[:]
            for node in siege.nodes:
                for packet in replay * 10:
                    hostile.send(node.node.node, packet)
            await siege.dropped("duplicate", 10 * len(replay), siege.nodes)
            await siege.publish("after")
            assert hostile.ends == {}

    run(main())


def test_a_node_that_restarts_is_not_fooled_by_replays(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], key = siege.hostile, new_key()[0]
            texts = [f"message {number}" for number in range(5)]
            first = await siege.live.join(node_key=key)
            reader = await read(await first.stream(siege.stream.id))
            await eventually(lambda: key.node in hostile.met, "it meets the hostile peer")
            for text in texts:
                await siege.publish(text)
            await eventually(lambda: reader.contents[-5:] == texts, "it has them all")
            replay = hostile.carried[:]
            await first.close()
            await eventually(lambda: key.node in hostile.ends, "it has left")
            again = await siege.live.join(node_key=key)
            reader = await read(await again.stream(siege.stream.id))
            await eventually(lambda: key.node in hostile.met, "they meet again")
            sign, long_ago = siege.live.owner.sign, number_at(-2 * JOIN_WINDOW_S)
            old = make_frame(hostile.part, siege.owner, sign, [(long_ago, "old")], chain=8)
            for packet in [carry(old), *replay * 3]:
                hostile.send(key.node, packet)
            # What is a minute old is history. What is newer it may get, like any newcomer: once.
            await siege.dropped("too-old", 1, [again])
            await siege.dropped("duplicate", 2 * len(replay), [again])
            await siege.publish("after")
            await eventually(lambda: "after" in reader.contents, "it goes on")
            assert len(reader.contents) == len(set(reader.contents))
            assert set(reader.contents) <= {"before", *texts, "after"}

    run(main())


def test_a_message_from_the_future_is_dropped_and_does_no_harm_to_its_chain(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], victim, sign = siege.hostile, siege.nodes[1], siege.live.owner.sign
            early = number_at(MAX_SKEW_S + 60)
            future = make_frame(hostile.part, siege.owner, sign, [(early, "early")])
            hostile.send(victim.node.node, carry(future))
            await siege.dropped("future", 1, [victim])
            now = make_frame(hostile.part, siege.owner, sign, [(number_at(), "in time")])
            hostile.send(victim.node.node, carry(now))
            await siege.hear("in time")
            assert hostile.ends == {}
            await siege.publish("after")

    run(main())


# --- Who may not publish --------------------------------------------------------------------


def test_who_may_not_publish_is_refused_by_everyone_until_it_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile] = siege.hostile
            sign, first = hostile.identity.sign, number_at()
            refused = make_frame(hostile.part, hostile.node, sign, [(first, "refused")])
            for node in siege.nodes:
                hostile.send(node.node.node, carry(refused))
            await siege.dropped("unpermitted", 1, siege.nodes)
            await siege.publish("meanwhile")
            await siege.stream.grant(show(hostile.node), "publish")
            # The grant is as new as can be, and only who made it is sure to have read it.
            permitted = [(number_at(), "permitted")]
            frame = make_frame(hostile.part, hostile.node, sign, permitted, previous=first)
            hostile.send(siege.nodes[2].node.node, carry(frame))
            await siege.hear("permitted")
            assert hostile.ends == {}
            await siege.publish("after")

    run(main())


def test_a_message_that_overtakes_its_grant_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], victim = siege.hostile, siege.nodes[2].node
            texts = [(number_at(), "overtaking")]
            frame = make_frame(hostile.part, hostile.node, hostile.identity.sign, texts)
            hostile.send(victim.node, carry(frame))
            await eventually(
                lambda: victim.peer.sizes()["doubtful packets"][0] == 1, "the message waits"
            )
            await siege.stream.grant(show(hostile.node), "publish")
            await siege.hear("overtaking")

    run(main())


# --- Who may not instruct -------------------------------------------------------------------


def test_instructions_count_only_from_the_tracker(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], victim = siege.hostile, siege.nodes[1].node
            before = victim.peer.neighbours(hostile.part)
            assert len(before) == HONEST
            only_us = (Contact(hostile.node, hostile.address),)
            hostile.say(victim.node, Instruction(hostile.part, 1_000, only_us))
            hostile.say(victim.node, Instruction(hostile.part, 1_001, (), ()))
            # A link keeps the order: once this has come, so has what was said before it.
            texts = [(number_at(), "behind the instructions")]
            frame = make_frame(hostile.part, siege.owner, siege.live.owner.sign, texts)
            hostile.send(victim.node, carry(frame))
            await siege.hear("behind the instructions")
            assert victim.peer.neighbours(hostile.part) == before
            await siege.publish("after")

    run(main())


def test_a_tracker_cuts_off_who_breaks_the_protocol(tmp_path: Path) -> None:
    async def main() -> None:
        async with besieged(tmp_path) as siege:
            [hostile], [tracker] = siege.hostile, siege.live.trackers
            hostile.send(
                tracker.identity.node, bytes([codec.PROTOCOL_VERSION, codec.CONTROL, 0xC1])
            )
            assert await hostile.end_of(tracker.identity.node) == "malformed"
            machine, honest = tracker.machine.tracker, {node.node.node for node in siege.nodes}
            assert machine.counts["faults"] == 1
            await eventually(
                lambda: set(machine.topology(hostile.part)) == honest, "only the honest are left"
            )
            await siege.publish("after")

    run(main())
