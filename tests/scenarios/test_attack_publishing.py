"""Attacks on publishing: in somebody's name, without a right, too late, or again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch import NetworkUnreachable, NotPublished, connect
from anabranch.core import frames
from anabranch.core.changes import (
    SIGNATURE_BYTES,
    CreateStream,
    DeleteStream,
    EditStream,
    Right,
    SetPermission,
    SetTrackers,
)
from anabranch.core.history import History
from anabranch.core.ids import show
from anabranch.core.incoming import MAX_SKEW_S
from anabranch.core.mandate import introduce
from anabranch.core.messages import Bye
from anabranch.core.messages.registry import NETWORK
from anabranch.core.parts import JOIN_WINDOW_S
from anabranch.core.permission import TRUST_FOR_S
from anabranch.live.address import Host, NetworkAddress
from anabranch.live.keys import new_key
from anabranch.live.transports import TransportError
from anabranch.live.transports.websocket import WebSocketTransport
from live.attackers import Spy, change_of, doctor, doctored_stream, write
from live.hostile_peer import carry, make_frame
from live.networks import eventually, neighbours, run
from live.readers import read
from live.town import Town, number_at, town

PATIENCE_S = 3.0  # a little more than what comes from nowhere is kept back for


# --- Who may not publish --------------------------------------------------------------------


async def publish_in_vain(place: Town, path: str, *public: str) -> None:
    """Publish with a node that asks nobody; see that no neighbour takes it."""
    stream = await place.nodes[0].create_stream(path, public=public)
    readers = [await read(stream)]
    mallory = doctor(await place.live.join(new_key()[0], patience_s=PATIENCE_S))
    theirs = await doctored_stream(mallory, stream.id)
    publishing = asyncio.create_task(theirs.publish("not permitted"))
    if public:
        await eventually(lambda: neighbours(mallory, stream.id) == 1, "a neighbour")
    with pytest.raises(NotPublished):
        await publishing
    assert neighbours(mallory, stream.id) == bool(public)
    assert mallory.metrics["parts"][f"{stream.id}#0"]["published"] == 1  # it did make the frame
    await readers[0].stop()
    assert readers[0].contents == []


def test_publishing_without_permission(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, public="subscribe") as place:
            mallory = await place.enter(Spy(place.live, place.stream.id), neighbours=3)
            sign, user = mallory.user.sign, mallory.user.node
            frame = make_frame(place.part, user, sign, [(number_at(), "not permitted")])
            for node in place.nodes:
                mallory.send(node.node.node, carry(frame))
            await asyncio.gather(
                publish_in_vain(place, "readable", "subscribe"), publish_in_vain(place, "private")
            )
            await place.dropped("unpermitted", 1)
            assert mallory.ends == {}  # it may have been too early, for all they know
            await place.publish("after")

    run(main())


def test_publishing_with_an_expired_permission(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, public="subscribe") as place:
            mallory = await place.enter(Spy(place.live, place.stream.id), neighbours=3)
            sign, user, victims = mallory.user.sign, mallory.user.node, place.nodes[1:]
            until = time.time() + 1.5
            await place.stream.grant(show(user), "publish", expires_ms=int(until * 1000))
            number = number_at()
            frame = make_frame(place.part, user, sign, [(number, "in time")])
            mallory.send(victims[0].node.node, carry(frame))
            await place.hear("in time")
            await eventually(lambda: time.time() > until + TRUST_FOR_S, "it is over")
            # One goes on as if nothing had happened, one pretends to be older than it is.
            late = make_frame(place.part, user, sign, [(number_at(), "late")], number)
            backdated = [(number_at(until - time.time() - 0.5), "backdated")]
            for packet in (late, make_frame(place.part, user, sign, backdated, chain=8)):
                for node in victims:
                    mallory.send(node.node.node, carry(packet))
            await place.dropped("unpermitted", 2, *victims)
            await place.publish("after")

    run(main())


def test_publishing_after_the_permission_was_revoked(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as place:
            user = new_key()[0]
            await place.allow({user.node: "publish"})
            mallory = await place.enter(Spy(place.live, place.stream.id, user), neighbours=3)
            number, victims = number_at(), place.nodes
            frame = make_frame(place.part, user.node, user.sign, [(number, "granted")])
            mallory.send(victims[1].node.node, carry(frame))
            await place.hear("granted")
            prepared = make_frame(place.part, user.node, user.sign, [(number + 1, "old")], number)
            await place.allow({user.node: ""})
            late = make_frame(place.part, user.node, user.sign, [(number_at(), "late")], chain=8)
            for node in victims:
                for packet in (prepared, late):
                    mallory.send(node.node.node, carry(packet))
            await place.dropped("unpermitted not-neighbour", 2)
            # It has lost its neighbours, too: nothing more is sent to it.
            await mallory.hear(Bye, 3)
            caught = len(mallory.carried)
            await place.publish("after")
            assert len(mallory.carried) == caught

    run(main())


# --- In the name of others ------------------------------------------------------------------


def test_a_stolen_name_of_a_publisher(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, public="subscribe") as place:
            for at, victim in enumerate(place.nodes):
                mallory = await place.enter(Spy(place.live, place.stream.id), neighbours=3)
                texts = [(number_at(), "in your name")]
                frame = make_frame(place.part, place.owner, mallory.user.sign, texts)
                mallory.send(victim.node.node, carry(frame))
                assert await mallory.end_of(victim.node.node) == "forged"
                assert victim.metrics["notices"]["fault"] == 1
                await place.publish(f"after {at}")
                await mallory.__aexit__(None, None, None)

    run(main())


def test_a_stolen_name_of_a_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as place:
            mallory = await place.enter(Spy(place.live, place.stream.id))
            keeper, me = place.tracker.machine.keeper, mallory.user
            taken, owner = keeper.history(place.stream.id), place.owner
            free = History(f"{show(owner)}/not-yet", place.live.address.genesis)
            begin, network = CreateStream(public=3), keeper.history(NETWORK)
            give = SetPermission(me.node, int(Right.PUBLISH | Right.SUBSCRIBE))
            theirs = SetTrackers((place.tracker.entry(),))
            before = {chain: keeper.history(chain).head for chain in keeper.chains()}
            # In its own name it is refused: it has no right to any of this.
            for history, action in [
                (free, begin),
                (taken, give),
                (taken, EditStream(metadata="mine")),
                (taken, DeleteStream()),
                (network, theirs),
            ]:
                change = change_of(history, me.node, me.sign, action)
                assert (await write(mallory, place.tracker, change)).startswith("forbidden")
            # In the owner's name it is a forgery, and so is what he signed for another network.
            elsewhere = place.live.owner.sign, b"e" * 32
            for sign, named in [(me.sign, None), elsewhere]:
                for history, action in [(free, begin), (taken, give), (network, theirs)]:
                    change = change_of(history, owner, sign, action, network=named)
                    assert await write(mallory, place.tracker, change) == "change-forged"
            assert {chain: keeper.history(chain).head for chain in keeper.chains()} == before
            assert keeper.streams() == [place.stream.id]
            await place.publish("after")

    run(main())


class Impostor:
    """A key that goes by another's name."""

    def __init__(self, name: bytes) -> None:
        key = new_key()[0]
        self.node = name
        self.public, self.sign, self.agree = key.public, key.sign, key.agree


@asynccontextmanager
async def in_the_name_of(name: bytes, owner: Spy) -> AsyncIterator[WebSocketTransport]:
    """Listen and dial as if one were somebody else."""
    impostor: Any = Impostor(name)
    transport = WebSocketTransport(impostor, owner.network, "127.0.0.1")
    await transport.start(owner)
    try:
        yield transport
    finally:
        await transport.stop()


def test_a_stolen_name_of_a_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as place:
            network, (victim, other) = place.live.address.genesis, place.nodes[1:]
            spy = Spy(place.live, place.stream.id)
            async with in_the_name_of(victim.node.node, spy) as false:
                for address in (other.node.address, place.tracker.transport.address):
                    with pytest.raises(TransportError, match="bad-proof"):
                        await false.find(address)
            # Nor is it believed by those who dial it: here somebody looks for the tracker.
            async with in_the_name_of(place.tracker.identity.node, spy) as false:
                there = NetworkAddress(network, (Host("127.0.0.1", false.port),))
                with pytest.raises(NetworkUnreachable, match="bad-proof"):
                    await connect(str(there), key=new_key()[0]).__aenter__()
            assert spy.links == {}
            # And a mandate is of use only to the node that it was made out to.
            thief = await place.enter(Spy(place.live, place.stream.id))
            user = place.nodes[1].node.identity
            thief.mandate = introduce(user, network, victim.node.node, time.time())
            await thief.reach(other.node.address)
            assert await thief.end_of(other.node.node) == "mandate-forged"
            await place.publish("after")

    run(main())


# --- Again, and altered ---------------------------------------------------------------------


def test_a_replay_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, public="subscribe") as place:
            mallory = await place.enter(Spy(place.live, place.stream.id), neighbours=3)
            key, sign = new_key()[0], place.live.owner.sign
            first = await place.live.join(node_key=key)
            reader = await read(await first.stream(place.stream.id))
            await eventually(lambda: key.node in mallory.met, "they meet")
            await place.publish("once")
            await eventually(lambda: "once" in reader.contents, "it has it")
            replay = list(mallory.carried)
            await first.close()
            await eventually(lambda: key.node in mallory.ends, "it has left")
            again = await place.live.join(node_key=key)
            reader = await read(await again.stream(place.stream.id))
            await eventually(lambda: key.node in mallory.met, "they meet again")

            def said(seconds_ahead: float, chain: int) -> bytes:
                texts = [(number_at(seconds_ahead), "long ago, or not yet")]
                return carry(make_frame(place.part, place.owner, sign, texts, chain=chain))

            old = [said(-2 * JOIN_WINDOW_S, 11), said(-10 * MAX_SKEW_S, 12)]
            future = [said(MAX_SKEW_S + 60, 13), said(1000 * MAX_SKEW_S, 14)]
            running = place.nodes[1]
            for packet in [*old, *future, *replay, *replay]:
                mallory.send(key.node, packet)
                mallory.send(running.node.node, packet)
            await place.dropped("too-old", 2, again, running)
            await place.dropped("future", 2, again, running)
            await place.publish("after")
            await eventually(lambda: "after" in reader.contents, "it goes on")
            # What is less than a minute old it may get like any newcomer, but once.
            assert len(reader.contents) == len(set(reader.contents))
            assert set(reader.contents) <= set(place.expected)

    run(main())


def test_an_altered_frame(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1, public="subscribe") as place:
            victim, head = place.nodes[1], frames.HEAD.size
            texts = [(number_at(), "as it was said")]
            frame = make_frame(place.part, place.owner, place.live.owner.sign, texts)
            # The chain, the message before, the length, the content, the signature.
            for at in (30, 52, head - 1, frame.index(b"said"), -SIGNATURE_BYTES, -1):
                altered = bytearray(frame)
                altered[at] ^= 1
                async with Spy(place.live, place.stream.id) as mallory:
                    await mallory.take_place(2)
                    mallory.send(victim.node.node, carry(bytes(altered)))
                    reason = "frame-length" if at == head - 1 else "forged"
                    assert await mallory.end_of(victim.node.node) == reason
            # None of that has censored the real one.
            carrier = await place.enter(Spy(place.live, place.stream.id), neighbours=2)
            carrier.send(victim.node.node, carry(frame))
            await place.hear("as it was said")
            await place.publish("after")

    run(main())
