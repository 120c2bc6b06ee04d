"""The past of a private stream whose publisher is gone: who has read it gives the keys."""

from pathlib import Path

from anabranch.live.keys import new_key
from live.networks import eventually, live_network, run
from live.storage.test_process import past, read


def test_a_newcomer_reads_what_a_publisher_left_that_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            publisher, early, late = new_key()[0], new_key()[0], new_key()[0]
            owner = await live.join()
            stream = await owner.create_stream("private", storage=1)
            users = [(await live.join(key)).me for key in (early, late)]
            gone = live.connect(publisher)
            async with gone:
                await stream.set_permissions(
                    {gone.me: "publish", users[0]: "subscribe", users[1]: "subscribe"}
                )
                theirs = await gone.stream(stream.id)
                await eventually(lambda: theirs.may("publish"), "the right to publish")
                for n in range(5):
                    await theirs.publish_stored(n)
                reader = await (await live.join(early)).stream(stream.id)
                assert await past(reader) == list(range(5))
            async with reader.subscribe():  # it stays, and has the keys
                newcomer = await (await live.join(late)).stream(stream.id)
                assert await past(newcomer) == list(range(5))
                assert await read(newcomer, 3, last=3) == [2, 3, 4]

    run(main(), 90.0)
