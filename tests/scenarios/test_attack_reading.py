"""Attacks on what is private: by strangers, by who was removed, by thieves and by who listens."""

import os
import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch import LocalError, Network
from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.key_answering import UNPERMITTED
from anabranch.core.key_records import (
    NONCE_BYTES,
    KeyQuestion,
    KeyReply,
    make_request,
    open_keys,
    read_answer,
)
from anabranch.core.mandate import introduce
from anabranch.core.messages import Bye, KeyAnswer, KeyRequest, Meet, Refused, Status
from anabranch.core.messages.links import TICKET_BYTES
from anabranch.live.address import Host, NetworkAddress
from anabranch.live.key_store import KeyStore
from anabranch.live.keys import new_key
from live.attackers import Relay, Spy, doctor, keep_company, keys_of, open_all, read_anyway
from live.networks import eventually, live_network, run
from live.readers import Reader
from live.tap import free_port, tapped
from live.town import Town, inhabit, settle, town

CURVE = KnownKeys()


# --- Strangers ------------------------------------------------------------------------------


def test_no_neighbours_without_permission(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path) as place:
            mallory = await place.enter(Spy(place.live, place.stream.id))
            mute = await place.enter(Spy(place.live, place.stream.id))
            mute.mandate = None
            tracker, victim = place.tracker.identity.node, place.nodes[1].node
            for spy in (mallory, mute):
                await spy.reach(place.tracker.transport.address)
                spy.say(tracker, Status(place.part, 0, address=spy.address))
                assert await spy.hear(Refused) == [Refused(place.part, "unpermitted")]
                # What the tracker does not give, a node does not give either.
                await spy.reach(victim.address)
                spy.say(victim.node, Meet(place.part, recent_ms=60_000))
                spy.say(victim.node, Meet(place.part, reply=True, recent_ms=60_000))
                await spy.hear(Bye, 2)
            thief = await place.enter(Spy(place.live, place.stream.id))
            user, node = place.nodes[2].node.identity, place.nodes[2].node.node
            thief.mandate = introduce(user, thief.network, node, time.time())
            await thief.reach(place.tracker.transport.address)
            assert await thief.end_of(tracker) == "mandate-forged"
            await place.publish("after")
            honest = {node.node.node for node in place.nodes}
            assert set(place.tracker.machine.tracker.topology(place.part)) == honest
            for spy in (mallory, mute, thief):
                assert (spy.carried, spy.met, spy.words(Meet)) == ([], set(), [])

    run(main())


# --- Keys -----------------------------------------------------------------------------------


async def key_id_of(spy: Spy) -> bytes:
    """Return the id of the key that the last frame was encrypted with: it is no secret."""
    return frames.lock_of((await spy.catch(1))[-1]).key_id


def question(place: Town, spy: Spy, user: Identity, key_id: bytes, **other: object) -> KeyQuestion:
    """Ask the owner for a key, as its user would."""
    fields = {
        "network": spy.network,
        "stream": place.stream.id,
        "publisher": place.owner,
        "user": user.node,
        "public": user.public,
        "key_ids": (key_id,),
        "at_ms": int(time.time() * 1000),
        "nonce": os.urandom(NONCE_BYTES),
    }
    return KeyQuestion(**{**fields, **other})  # type: ignore[arg-type]


def ask(place: Town, spy: Spy, request: bytes) -> bytes:
    """Send a request straight to the owner's node; return its ticket."""
    ticket, chain = os.urandom(TICKET_BYTES), frames.peek(spy.frames[-1]).chain
    spy.say(place.publisher, KeyRequest(place.part, chain, ticket, 1, request))
    return ticket


async def answer_to(place: Town, spy: Spy, ticket: bytes, request: bytes) -> KeyReply:
    """Wait for the owner's answer."""
    await eventually(lambda: any(a.ticket == ticket for a in spy.words(KeyAnswer)), "an answer")
    [answer] = [a.answer for a in spy.words(KeyAnswer) if a.ticket == ticket]
    reply = read_answer(answer, request, spy.network, CURVE.verify)
    assert reply.by == place.owner
    return reply


async def carrier_in(place: Town, kind: type[Spy] = Spy) -> Spy:
    """Let somebody in who may publish and not read; everybody takes it for a neighbour."""
    user = new_key()[0]
    await place.allow({user.node: "publish"})
    spy = await place.enter(kind(place.live, place.stream.id, user), neighbours=len(place.nodes))
    await place.publish("a carrier is here")
    return spy


def test_no_keys_without_permission(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            carrier, stranger = await carrier_in(place), new_key()[0]
            guest, key_id = place.nodes[1].node.identity, await key_id_of(carrier)
            for user in (carrier.user, stranger):
                request = make_request(user, question(place, carrier, user, key_id))
                ticket = ask(place, carrier, request)
                assert await answer_to(place, carrier, ticket, request) == KeyReply(
                    place.owner, b"", UNPERMITTED
                )
            # Whoever may have it is given it, by the same way: that is not what was missing.
            request = make_request(guest, question(place, carrier, guest, key_id))
            reply = await answer_to(place, carrier, ask(place, carrier, request), request)
            [key] = open_keys(guest, request, reply)
            assert open_all(carrier.frames, [key.secret])[-1] == "a carrier is here"
            for thief in (carrier.user, stranger):
                with pytest.raises(RemoteError):
                    open_keys(thief, request, reply)
            # Who is nobody's neighbour is not even heard.
            far = await place.enter(Spy(place.live, place.stream.id))
            await far.reach(place.nodes[0].node.address)
            far.carried = list(carrier.carried)
            ask(place, far, make_request(guest, question(place, far, guest, key_id)))
            far.say(place.publisher, Meet(place.part))
            await far.hear(Bye)
            await place.publish("after")
            assert far.words(KeyAnswer) == []

    run(main())


def test_a_key_request_in_somebodys_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            carrier, guest = await carrier_in(place), place.nodes[1].node.identity
            me, key_id = carrier.user, await key_id_of(carrier)
            genuine = make_request(guest, question(place, carrier, guest, key_id))
            first = ask(place, carrier, genuine)
            await answer_to(place, carrier, first, genuine)

            def forge(signer: Identity, **other: object) -> bytes:
                return make_request(signer, question(place, carrier, guest, key_id, **other))

            hour_ms = 3_600_000
            for request in [
                forge(me),  # in his name, signed by another
                forge(me, public=me.public),  # to be sealed to another
                forge(guest, public=me.public),
                forge(guest, network=b"e" * 32),  # what he signed for elsewhere
                forge(guest, stream=place.stream.id + "2"),
                forge(guest, publisher=me.node),
                forge(guest, at_ms=int(time.time() * 1000) - hour_ms),  # and long ago
                forge(guest, at_ms=int(time.time() * 1000) + hour_ms),
                genuine,  # and just now, for the second time
                genuine[:-1] + b"\0",
                genuine[:40],
                b"",
            ]:
                ask(place, carrier, request)
            # What is in order is answered, and it came after all these.
            again = make_request(guest, question(place, carrier, guest, key_id))
            last = ask(place, carrier, again)
            assert (await answer_to(place, carrier, last, again)).sealed
            assert {answer.ticket for answer in carrier.words(KeyAnswer)} == {first, last}
            await place.publish("after")

    run(main())


# --- Those who could read -------------------------------------------------------------------


class Eve:
    """A subscriber whose code obeys nobody, and a relay that may stay and hands it everything."""

    def __init__(self, network: Network, reader: Reader, friend: Relay) -> None:
        self.network = network
        self.reader = reader
        self.friend = friend

    async def stay(self, place: Town) -> None:
        """Keep reading by way of the friend, whoever else says goodbye."""
        node = self.network.node
        await self.friend.reach(node.address)
        keep_company(self.network, place.part, self.friend.node)
        self.friend.also = {node.node}
        await place.publish("by way of the friend")
        await eventually(lambda: "by way of the friend" in self.reader.contents, "Eve reads on")

    async def learn_nothing_more(self, place: Town) -> None:
        """See that what is published from now on opens to Eve by no means."""
        before, so_far = list(self.reader.contents), len(set(self.friend.frames))
        refusals = self.network.metrics["notices"].get("no-key", 0)
        for number in range(3):
            await place.publish(f"not for Eve {number}")
        caught = await self.friend.catch(so_far + 3)
        # Her node has the frames, and has asked for the key: the owner himself said no.
        await eventually(
            lambda: self.network.metrics["notices"].get("no-key", 0) > refusals, "a refusal"
        )
        assert self.reader.contents == before
        assert open_all(caught[:so_far], keys_of(self.network))[-1] == before[-1]
        assert open_all(caught[so_far:], keys_of(self.network)) == []


async def eve_in(place: Town, expires_ms: int = 0) -> Eve:
    """Let Eve subscribe, with the right to do so."""
    friend = await carrier_in(place, Relay)
    assert isinstance(friend, Relay)
    friend.towards = place.publisher
    user = new_key()[0]
    network = doctor(await place.live.join(user))
    await place.stream.grant(network.me, "subscribe", expires_ms=expires_ms)
    reader = await read_anyway(network, place.stream.id)
    await eventually(lambda: network.node.node in friend.met, "Eve is in")
    await place.publish("for Eve, too")
    await eventually(lambda: "for Eve, too" in reader.contents, "Eve reads")
    return Eve(network, reader, friend)


def test_a_removed_subscriber_cannot_read_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            eve = await eve_in(place)
            await eve.stay(place)
            await place.allow({eve.network.node.identity.node: ""})
            await eve.learn_nothing_more(place)

    run(main())


def test_an_expired_subscriber_cannot_read_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            until = time.time() + 4.0
            eve = await eve_in(place, int(until * 1000))
            await eve.stay(place)
            await eventually(lambda: time.time() > until, "it is over")
            await eve.learn_nothing_more(place)

    run(main())


def test_who_only_carries_cannot_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            user = new_key()[0]
            await place.allow({user.node: "publish"})
            carrier = doctor(await place.live.join(user))
            reader = await read_anyway(carrier, place.stream.id)
            await settle([*place.nodes, carrier], place.stream.id)
            for number in range(3):
                await place.publish(f"carried {number}")
            await eventually(lambda: carrier.metrics["notices"].get("no-key", 0) > 0, "a refusal")
            name = f"{place.stream.id}#0"
            await eventually(lambda: dropped_without_key(carrier, name) >= 3, "no key")
            assert (reader.contents, keys_of(carrier)) == ([], [])

    run(main())


# --- Thieves and listeners ------------------------------------------------------------------


def test_private_content_is_never_in_the_clear_on_the_wire(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live, AsyncExitStack() as stack:
            taps = [await stack.enter_async_context(tapped(live.trackers[0].transport.port))]
            live.address = NetworkAddress(live.address.genesis, (Host("127.0.0.1", taps[0].port),))

            async def join(key: Identity | None = None) -> Network:
                port = free_port()
                taps.append(await stack.enter_async_context(tapped(port)))
                there = f"ws://127.0.0.1:{taps[-1].port}"
                return await plain_join(key, listen=f"127.0.0.1:{port}", advertise=there)

            plain_join, live.join = live.join, join  # type: ignore[method-assign]
            place = await inhabit(live, stack, 2, "private")
            secrets = [f"confidential {number}" for number in range(5)]
            for secret in secrets:
                await place.publish(secret)
            await place.allow({new_key()[0].node: "subscribe"})
            await place.stream.revoke(place.nodes[2].me)  # which brings about another key
            await place.stream.publish("confidential at last")
            await eventually(lambda: len(keys_of(place.nodes[1])) == 2, "the second key")
            public = await place.nodes[0].create_stream("public", public="subscribe")
            readers = [await node.stream(public.id) for node in place.nodes[1:]]
            async with readers[0].subscribe() as first, readers[1].subscribe() as second:
                await public.publish("for everybody to see")
                await anext(first), await anext(second)
            caught = b"|".join(tap.caught for tap in taps)
            assert sum(tap.connections for tap in taps) >= 3 + 3
            assert caught.count(b"for everybody to see") >= 2  # so we would have seen the others
            assert b"confidential" not in caught
            for node in place.nodes:
                assert keys_of(node)
                assert not any(key in caught for key in keys_of(node))

    run(main())


def test_a_stolen_key_store_opens_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with town(tmp_path, guests=1) as place:
            carrier, user = await carrier_in(place), new_key()[0]
            await place.allow({user.node: "subscribe"})
            store = tmp_path / "store" / "keys.sqlite"
            victim = await place.live.join(user, key_store=store)
            await place.add(victim)
            await place.publish("kept")
            caught, secrets = await carrier.catch(1), keys_of(victim)
            assert open_all(caught, secrets)[-1] == "kept"
            await victim.close()
            place.nodes.pop(), place.readers.pop()
            stolen = tmp_path / "stolen"
            shutil.copytree(store.parent, stolen)
            content = b"".join(file.read_bytes() for file in stolen.iterdir())
            assert content
            assert not any(secret in content for secret in secrets)
            ends = range(32, len(content) + 1)
            windows = {content[end - 32 : end] for end in ends}
            assert open_all(caught[-1:], list(windows)) == []
            for thief in (carrier.user, place.nodes[1].node.identity):
                theirs = KeyStore(stolen / store.name, place.live.address.genesis, thief)
                with pytest.raises(LocalError, match="made with another key"):
                    theirs.load()
                theirs.close()
            # It is of use to its owner.
            again = KeyStore(stolen / store.name, place.live.address.genesis, user)
            assert [key.secret for key in again.load()] == secrets
            again.close()

    run(main())


def dropped_without_key(network: Network, part: str) -> int:
    """Return how many frames of a part a node could not open."""
    return int(network.metrics["parts"].get(part, {}).get("dropped", {}).get("no-key", 0))
