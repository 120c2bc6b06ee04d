"""Who may do what with a stream: given, taken back, expired, and the stream's own end."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from anabranch import LocalError, Network, NoSuchStream, NotPermitted, NotPublished, Stream
from anabranch.core.changes import Right, SetPermission
from anabranch.core.ids import parse_node
from anabranch.live.keys import new_key
from live.networks import LiveNetwork, eventually, live_network, run
from live.readers import Reader, all_have, read
from support.waiting import limit

FAR_MS = 4_000_000_000_000  # in the year 2096


async def owner_and_guest(live: LiveNetwork, **options: Any) -> tuple[Network, Stream, Stream]:
    """Create a stream; return the guest, the stream as its owner holds it, and as the guest."""
    owner = await live.join()
    guest = await live.join(new_key()[0], patience_s=2.0)
    stream = await owner.create_stream("guarded", **options)
    return guest, stream, await guest.stream(stream.id)


async def assert_may_not_publish(stream: Stream) -> None:
    with pytest.raises(NotPermitted, match=rf"anabranch stream grant {stream.id} 0x\w+ publish`"):
        await stream.publish("not permitted")


def assert_may_not_subscribe(stream: Stream) -> None:
    with pytest.raises(NotPermitted, match=rf"anabranch stream grant {stream.id} 0x\w+ subscribe`"):
        stream.subscribe()


async def grant_what_is_over(stream: Stream, guest: Network) -> None:
    """Write a permission that has expired into the registry."""
    over = SetPermission(parse_node(guest.me), Right.PUBLISH, 1)
    await stream._network.change(stream.id, over)


def test_mistakes_are_told_from_permissions(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, _ = await owner_and_guest(live)
            me, nobody = stream._network.me, "0x" + "00" * 20
            for mistake, advice in (
                (lambda: stream.grant(nobody, "subscribe"), "write public if you mean everyone"),
                (lambda: stream.set_permissions({nobody: ()}), "write public"),
                (lambda: stream.grant("public", "grant"), "are for some"),
                (lambda: stream.set_permissions({"public": "delete"}), "are for some"),
                (lambda: stream.grant(None, "publish"), "name an address"),
                (lambda: stream.grant(guest.me, 3), "name publish, subscribe"),
                (lambda: stream.grant(guest.me, "publish", expires_ms=1.5), "is no time"),
                (lambda: stream.grant(guest.me, "publish", expires_ms=10**30), "is no time"),
                (lambda: stream.revoke(me), "has every right"),
                (lambda: stream.edit(storage=[nobody]), "zero address"),
                (lambda: stream.edit(trackers=["x"]), "write 0x...=ws://host:port"),
            ):
                with pytest.raises(LocalError, match=re.escape(advice)):
                    await mistake()
            assert stream.info()["permissions"] == []
            await stream.set_permissions({guest.me: "publish"}, {guest.me: FAR_MS})
            assert stream.info()["permissions"][0]["expires_ms"] == FAR_MS
            await stream.edit(trackers=[f"{guest.me}=ws://127.0.0.1:1"])
            assert stream.info()["trackers"] == [guest.me]
            assert not stream.may("publish", "public")

    run(main())


def test_a_guest_may_do_what_it_was_granted_and_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            reader = await read(stream)
            await assert_may_not_publish(theirs)
            assert_may_not_subscribe(theirs)
            await stream.grant(guest.me, "publish")
            await eventually(lambda: theirs.may("publish"), "the guest's permission")
            await theirs.publish("granted")
            assert_may_not_subscribe(theirs)
            await stream.grant(guest.me, "subscribe")
            await eventually(lambda: theirs.may("subscribe"), "another permission")
            assert theirs.may("publish")
            its_reader = await read(theirs)
            await stream.publish("to the guest")
            await all_have([reader], 2)
            await eventually(lambda: "to the guest" in its_reader.contents, "its first message")
            assert reader.contents == ["granted", "to the guest"]

    run(main())


def test_a_permission_that_was_just_given_can_be_used_at_once(tmp_path: Path) -> None:
    """Whoever heard of it elsewhere need not wait for the registry's word."""

    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            reader = await read(stream)
            await stream.grant(guest.me, "publish")
            await theirs.publish("at once")
            await all_have([reader], 1)

    run(main())


def test_what_is_taken_back_cannot_be_done_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            reader = await read(stream)
            await stream.grant(guest.me, "publish", "subscribe")
            await theirs.publish("before")
            await stream.revoke(guest.me, "publish")
            await eventually(lambda: not theirs.may("publish"), "the guest to hear of it")
            await assert_may_not_publish(theirs)
            assert theirs.may("subscribe")
            await stream.revoke(guest.me)
            await eventually(lambda: not theirs.may("subscribe"), "the end of all rights")
            assert_may_not_subscribe(theirs)
            assert reader.contents == ["before"]

    run(main())


def test_everyone_may_what_is_public(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live, public="subscribe")
            its_reader = await read(theirs)
            await assert_may_not_publish(theirs)
            await stream.publish("to all")
            await all_have([its_reader], 1)
            await stream.grant("public", "publish")
            await theirs.publish("from all")
            await all_have([its_reader], 2)
            await stream.revoke("public")
            await eventually(lambda: not theirs.may("publish"), "the end of it")
            assert not theirs.may("subscribe", guest.me)

    run(main())


def test_a_permission_lasts_until_its_time_and_no_longer(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            reader = await read(stream)
            with pytest.raises(LocalError, match="is over already"):
                await stream.grant(guest.me, "publish", expires_ms=1)
            await grant_what_is_over(stream, guest)
            await assert_may_not_publish(theirs)
            await stream.grant(guest.me, "publish", expires_ms=FAR_MS)
            await theirs.publish("in time")
            await stream.grant(
                guest.me, "publish", expires_ms=int((time.time() + limit(0.3)) * 1000)
            )
            held = [p for p in theirs.info()["permissions"] if p["who"] == guest.me]
            assert [p["rights"] for p in held] == [["publish"]]
            await eventually(lambda: not theirs.may("publish"), "its end")
            await assert_may_not_publish(theirs)
            assert reader.contents == ["in time"]

    run(main())


def test_only_who_may_grant_grants_and_only_who_may_delete_deletes(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            with pytest.raises(NotPermitted, match="the right to grant"):
                await theirs.grant(guest.me, "publish")
            with pytest.raises(NotPermitted, match="the right to delete"):
                await theirs.delete()
            with pytest.raises(LocalError, match="name the rights"):
                await stream.grant(guest.me)
            with pytest.raises(LocalError):
                await stream.grant(guest.me, "read")
            with pytest.raises(LocalError):
                await stream.grant("somebody", "publish")
            await stream.grant(guest.me, "grant", "delete")
            await eventually(lambda: theirs.may("delete"), "more rights")
            await theirs.grant("public", "subscribe")
            await theirs.delete()
            await eventually(lambda: gone(stream), "the stream's end")

    run(main())


def gone(stream: Stream) -> bool:
    try:
        stream.info()
    except NoSuchStream:
        return True
    return False


def test_rights_given_and_taken_at_once_are_both_heeded(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            same = await (await live.join()).stream(stream.id)
            for _ in range(5):
                await stream.grant(guest.me, "publish", "edit")
                await eventually(lambda: same.may("edit", guest.me), "the same state")
                await asyncio.gather(
                    same.grant(guest.me, "subscribe"), stream.revoke(guest.me, "publish")
                )
                for node in (stream, same, theirs):
                    await eventually(
                        lambda n=node: (
                            n.may("subscribe", guest.me) and not n.may("publish", guest.me)
                        ),
                        "both changes",
                    )
                await stream.revoke(guest.me)

    run(main())


def test_a_stream_that_is_deleted_ends_for_everyone(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            _, stream, theirs = await owner_and_guest(live, public=["publish", "subscribe"])
            readers: list[Reader] = [await read(stream), await read(theirs)]
            await theirs.publish("last")
            await all_have(readers, 1)
            await stream.delete()
            for reader in readers:
                await reader.ended
                assert isinstance(reader.failure, NoSuchStream)
                assert reader.contents == ["last"]
            for deleted in (stream, theirs):
                with pytest.raises(NoSuchStream):
                    await deleted.publish("too late")
                with pytest.raises(NoSuchStream):
                    deleted.subscribe()
            again = await (await live.join()).create_stream("guarded", public="subscribe")
            assert (again.id, again.info()["permissions"][0]["who"]) == (stream.id, "public")

    run(main())


def test_who_publishes_while_a_stream_is_deleted_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            _, stream, theirs = await owner_and_guest(live, public="publish")
            waiting = [asyncio.create_task(theirs.publish(i)) for i in range(5)]  # to nobody
            await asyncio.sleep(0)
            await stream.delete()
            done = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in done} <= {NoSuchStream, NotPublished}

    run(main())


def test_a_right_that_has_expired_does_not_come_back_with_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, _ = await owner_and_guest(live)
            await grant_what_is_over(stream, guest)
            await stream.grant(guest.me, "subscribe")
            assert not stream.may("publish", guest.me)
            assert stream.may("subscribe", guest.me)
            with pytest.raises(LocalError, match="holds subscribe with another end"):
                await stream.grant(guest.me, "publish", expires_ms=FAR_MS)
            await stream.grant(guest.me, "publish", "subscribe", expires_ms=FAR_MS)  # all together
            with pytest.raises(LocalError, match="holds publish, subscribe with another end"):
                await stream.grant(guest.me, "grant")
            assert stream.info()["permissions"][0]["expires_ms"] == FAR_MS

    run(main())


def test_who_may_no_longer_subscribe_reads_no_further(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            guest, stream, theirs = await owner_and_guest(live)
            await stream.grant(guest.me, "subscribe")
            await eventually(lambda: theirs.may("subscribe"), "the right")
            async with theirs.subscribe() as messages:
                await stream.publish("before")
                assert (await anext(messages)).content == "before"
                await stream.revoke(guest.me, "subscribe")
                with pytest.raises(NotPermitted, match="may no longer subscribe"):
                    await anext(messages)

    run(main())
