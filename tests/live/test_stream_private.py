"""Private streams as their users meet them: encrypted by themselves, readable to who may read."""

from pathlib import Path

import pytest

from anabranch import LocalError, Network, NotPermitted, Stream
from anabranch.core import frames
from anabranch.core.encryption import AES_256_GCM
from anabranch.core.machine import Published
from anabranch.live.key_store import KeyStore
from anabranch.live.keys import new_key
from live.networks import eventually, live_network, neighbours, run
from live.readers import all_have, read


def test_a_private_stream_is_encrypted_and_nobody_does_anything_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner, guest = await live.join(), await live.join(new_key()[0])
            locks: list[int] = []
            spy_on_frames(owner.node, locks)
            for name, public in (("private", ()), ("open", ("subscribe",))):
                stream = await owner.create_stream(name, public=public)
                if not public:
                    await stream.grant(guest.me, "subscribe")
                reader = await read(await granted(guest, stream.id))
                own = await read(stream)
                await stream.publish({"secret": name})
                await all_have([reader, own], 1)
                assert reader.contents == own.contents == [{"secret": name}]
                assert stream.info()["encrypted"] is not bool(public)
            assert locks == [AES_256_GCM, 0]

    run(main())


def test_a_publisher_that_leaves_at_once_leaves_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            stream = await (await live.join()).create_stream("brief")
            reader = await read(stream)
            for at in range(3):
                async with live.connect() as publisher:
                    await (await publisher.stream(stream.id)).publish(at)
            await all_have([reader], 3)
            assert reader.contents == [0, 1, 2]

    run(main())


def test_who_fails_after_publishing_leaves_its_key_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            stream = await (await live.join()).create_stream("brief")
            reader = await read(stream)

            async def fail() -> None:
                async with live.connect() as publisher:
                    await (await publisher.stream(stream.id)).publish("before")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            await all_have([reader], 1)

    run(main())


def test_keys_are_kept_for_the_next_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path / "network") as live:
            store = tmp_path / "mine.sqlite"
            user = new_key()[0]
            owner = await live.join()
            stream = await owner.create_stream("kept")
            await stream.grant(show(user), "subscribe")
            async with live.connect(user, key_store=store) as guest:
                reader = await read(await guest.stream(stream.id))
                await stream.publish("first")
                await all_have([reader], 1)
            kept = KeyStore(store, live.trackers[0].network, user)
            [key] = kept.load()
            kept.close()
            assert (key.stream, key.publisher) == (stream.id, owner.node.identity.node)

    run(main())


def test_who_was_removed_does_not_read_on_and_the_others_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner = await live.join()
            stream = await owner.create_stream("shrinking")
            guests = [await live.join(new_key()[0]) for _ in range(2)]
            await stream.set_permissions({guest.me: "subscribe" for guest in guests})
            readers = [await read(await granted(guest, stream.id)) for guest in guests]
            await stream.publish("to both")
            await all_have(readers, 1)
            await stream.revoke(guests[0].me)
            await stream.publish("to one")
            await all_have(readers[1:], 2)
            await eventually(lambda: readers[0].failure is not None, "the word of the removal")
            assert isinstance(readers[0].failure, NotPermitted)
            assert readers[0].contents == ["to both"]
            await eventually(lambda: neighbours(guests[0], stream.id) == 0, "no neighbours")

    run(main())


def test_a_permission_that_expires_ends_a_subscription(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner, guest = await live.join(), await live.join(new_key()[0])
            stream = await owner.create_stream("brief")
            ends_ms = int((owner.node.driver.now() + 3.0) * 1000)
            await stream.grant(guest.me, "subscribe", expires_ms=ends_ms)
            reader = await read(await granted(guest, stream.id))
            await stream.publish("in time")
            await all_have([reader], 1)
            await eventually(lambda: reader.failure is not None, "the end", timeout_s=40.0)
            assert isinstance(reader.failure, NotPermitted)

    run(main())


def test_a_carrier_needs_no_right_to_read_and_cannot(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner, helper = await live.join(), await live.join(new_key()[0])
            stream = await owner.create_stream("carried")
            theirs = await helper.stream(stream.id)
            with pytest.raises(NotPermitted):
                theirs.carry()
            await stream.grant(helper.me, "publish")
            await eventually(lambda: theirs.may("publish"), "the grant")
            async with theirs.carry() as carrying:
                with pytest.raises(LocalError, match=r"use stream\.subscribe"):
                    aiter(carrying)
                await stream.publish("passes through")
                part = f"{stream.id}#0"
                await eventually(lambda: delivered(helper, part) == 1, "it")
                assert carrying.waiting == 0
                with pytest.raises(NotPermitted):
                    theirs.subscribe()
                await stream.revoke(helper.me)
                with pytest.raises(NotPermitted):
                    await carrying.discard()

    run(main())


def test_a_node_that_carries_begins_to_read_and_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner, other = await live.join(), await live.join()
            stream = await owner.create_stream("both")
            theirs = await other.stream(stream.id)
            async with theirs.carry():
                await stream.publish("unread")
                reader = await read(theirs)
                await stream.publish("read")
                await eventually(lambda: "read" in reader.contents, "a message to read")
                await reader.stop()
                await stream.publish("unread again")
                part = f"{stream.id}#0"
                await eventually(lambda: delivered(other, part) == 3, "all")

    run(main())


def test_partitions_are_added_to_a_stream_that_is_in_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            owner, other = await live.join(), await live.join()
            stream = await owner.create_stream("growing", metadata="small")
            theirs = await other.stream(stream.id)
            reader = await read(theirs)
            await stream.publish("before")
            await stream.edit(partitions=3, metadata="large")
            await eventually(lambda: theirs.partitions == 3, "the edit")
            assert theirs.info()["metadata"] == "large"
            more = await read(theirs, partitions=[1, 2])
            await stream.publish("new", partition=2)
            await all_have([reader, more], 1)
            assert (reader.contents, more.contents) == (["before"], ["new"])
            with pytest.raises(LocalError, match="none taken away"):
                await stream.edit(partitions=2)

    run(main())


def show(identity: object) -> str:
    return "0x" + identity.node.hex()  # type: ignore[attr-defined]


async def granted(guest: Network, name: str) -> Stream:
    """Return a stream as a guest holds it, once it has read that it may subscribe."""
    stream = await guest.stream(name)
    await eventually(lambda: stream.may("subscribe"), "the grant")
    return stream


def delivered(network: Network, part: str) -> int:
    """Return how many messages of a part a node has been delivered."""
    return int(network.metrics["parts"].get(part, {}).get("delivered", 0))


def spy_on_frames(node: object, locks: list[int]) -> None:
    """Note how each frame is encrypted that a node publishes."""
    perform = node.driver._handlers  # type: ignore[attr-defined]
    before = perform[Published]

    def published(effect: Published) -> None:
        locks.append(frames.lock_of(effect.frame).encryption)
        before(effect)

    perform[Published] = published
