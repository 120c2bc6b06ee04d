"""Readers that are slow, in a network over real sockets: they cost nobody but themselves."""

import asyncio
from pathlib import Path

from anabranch import Message, Network, Stream, Subscription
from anabranch.core.ids import StreamPart
from live.networks import eventually, live_network, run
from live.readers import all_have, all_linked, read, read_everywhere

BUFFER = 50
MESSAGES = 600


async def waiting_for_good(subscription: Subscription, count: int) -> None:
    """Wait until so many messages have come to a reader that reads nothing."""
    await eventually(
        lambda: subscription.missed + subscription.waiting == count, f"{count} messages to come"
    )


async def take(subscription: Subscription, count: int) -> list[Message]:
    """Read so many messages."""
    taken: list[Message] = []
    async for message in subscription:
        taken.append(message)
        if len(taken) == count:
            break
    return taken


def assert_accounted(messages: list[Message], count: int) -> None:
    """What came and what was missed in between are all there was, in its order."""
    expected = 0
    for message in messages:
        expected += message.missed
        assert message.content == expected
        expected += 1
    assert expected == count


def test_who_reads_nothing_holds_no_more_than_asked_and_is_told_what_it_missed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(3)]
            stream = await nodes[0].create_stream("slow")
            _, quick = await read_everywhere(nodes[:2], stream.id)
            async with (await nodes[2].stream(stream.id)).subscribe(buffer=BUFFER) as slow:
                await all_linked(nodes, stream.id, 2)
                for number in range(MESSAGES):
                    await stream.publish(number)
                    assert slow.waiting <= BUFFER
                await all_have([quick], MESSAGES)
                assert quick.contents == list(range(MESSAGES))
                await waiting_for_good(slow, MESSAGES)
                assert slow.missed == MESSAGES - BUFFER
                messages = await take(slow, BUFFER)
                assert_accounted(messages, MESSAGES)
                assert [message.missed for message in messages[1:]] == [0] * (BUFFER - 1)
                await stream.publish(MESSAGES)  # it goes on as if nothing had happened
                messages += await take(slow, 1)
                assert_accounted(messages, MESSAGES + 1)
                part = nodes[2].metrics["parts"][f"{stream.id}#0"]
                assert part["missed"] == MESSAGES - BUFFER
                assert part["delivered"] == MESSAGES + 1

    run(main())


def test_who_reads_a_little_now_and_then_can_account_for_everything(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            stream = await nodes[0].create_stream("now-and-then")
            messages: list[Message] = []
            async with (await nodes[1].stream(stream.id)).subscribe(buffer=BUFFER) as slow:
                published = 0
                for burst in (20, 130, 10, 260, 1, 49, 90):
                    for _ in range(burst):
                        await stream.publish(published)
                        published += 1
                    await waiting_for_good(slow, published - len(messages))
                    messages += await take(slow, min(7, slow.waiting))
                messages += await take(slow, slow.waiting)
                assert_accounted(messages, published)
                assert sum(message.missed for message in messages) == slow.missed > 0

    run(main())


async def far_from(publisher: Network, nodes: list[Network], stream: Stream) -> Network:
    """Return a node that others must carry to."""
    near = publisher.node.peer.neighbours(StreamPart(stream.id, 0))
    return next(n for n in nodes if n is not publisher and n.node.node not in near)


def test_who_reads_nothing_carries_for_the_others(tmp_path: Path) -> None:
    """In a ring, all but the publisher and one reader are stuck; that one lacks nothing."""

    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(6)]
            stream = await nodes[0].create_stream("ring", degree=2)
            stuck = [
                await (await node.stream(stream.id)).subscribe(buffer=1).__aenter__()
                for node in nodes[1:]
            ]
            publishing = await nodes[0].stream(stream.id)
            await publishing.publish("first")
            await all_linked(nodes, stream.id, 2)
            for subscription in stuck:
                await waiting_for_good(subscription, 1)
            far = await far_from(nodes[0], nodes, stream)
            reader = await read(await far.stream(stream.id))
            await asyncio.gather(*(publishing.publish(number) for number in range(MESSAGES)))
            await all_have([reader], MESSAGES)
            assert reader.contents == list(range(MESSAGES))
            assert min(message.hops for message in reader.messages) >= 2
            for subscription in stuck:
                await waiting_for_good(subscription, MESSAGES + 1)

    run(main())


def test_two_readers_of_one_node_are_slow_each_on_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            stream = await nodes[0].create_stream("two")
            theirs = await nodes[1].stream(stream.id)
            quick = (await read_everywhere(nodes[1:], stream.id))[0]
            async with theirs.subscribe(buffer=10) as slow:
                for number in range(100):
                    await stream.publish(number)
                await all_have([quick], 100)
                assert quick.contents == list(range(100))
                assert (quick.subscription.missed, slow.missed) == (0, 90)

    run(main())
