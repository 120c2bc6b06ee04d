"""Load on a network of processes: what is counted, and that nothing is lost, below and above."""

from collections.abc import Sequence

import pytest

from anabranch import MessageId, NotPublished
from anabranch.live import load
from anabranch.live.load import Counted, Load, load_network, measure, publish_load
from anabranch.live.local import Child
from anabranch.live.memory_network import MemoryNetwork
from anabranch.live.metrics import Delays
from anabranch.live.stream import Stream
from live.networks import eventually, run
from live.readers import all_have, read
from soak_live import SHARE, carry, faults

PART = "0x00/load#0"


def test_four_fifths_of_the_maximum_and_far_above_it() -> None:
    async def main() -> None:
        async with load_network(publishers=1, subscribers=3) as (streams, local):
            most = await measure(streams, local.nodes, Load(duration_s=2.0))
            assert most.published == most.delivered / 3 > 0
            below = Load(rate=SHARE * most.published_per_s, duration_s=5.0)
            outcome, memory = await carry(streams, local, below)
            assert faults(outcome, memory) == []
            assert outcome.published == round(below.rate * below.duration_s)
            assert outcome.delivered == 3 * outcome.published
            # Nothing is refused and nothing dropped: the publisher waits until it is its turn.
            above = Load(rate=5 * most.published_per_s, duration_s=0.6)
            outcome, memory = await carry(streams, local, above)
            assert faults(outcome, memory) == []
            assert outcome.delivered == 3 * round(above.rate * above.duration_s)

    run(main())


class Script:
    """A stream that takes messages one after the other, and refuses some."""

    def __init__(self, refused: Sequence[int] = ()) -> None:
        self.contents: list[bytes] = []
        self._refused = refused

    async def publish(self, content: bytes) -> MessageId:
        self.contents.append(content)
        if len(self.contents) in self._refused:
            raise NotPublished("nobody is here")
        return MessageId("0x00/load", 0, 1, 0, "0x00", "00")


@pytest.mark.parametrize("at_once", [1, 7, 4_096])
def test_an_open_loop_offers_exactly_what_it_should(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "AT_ONCE", at_once)
    streams = [Script(), Script(refused=[3, 4])]
    told: list[float] = []
    published, failed, seconds = run(
        publish_load(streams, Load(size=5, rate=1_000.0, duration_s=0.25), told.append)  # type: ignore[arg-type]
    )
    assert [len(stream.contents) for stream in streams] == [125, 125]
    assert {content for stream in streams for content in stream.contents} == {bytes(5)}
    assert (published, failed) == (248, 2)
    assert seconds >= 0.24  # it spreads them over the time
    assert all(0 < done <= 1 for done in told)


def test_a_closed_loop_keeps_so_many_under_way() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            reader = await read(await bob.stream(stream.id), buffer=1_000_000)
            most = 0

            def look(_: float) -> None:
                nonlocal most
                most = max(most, alice.node.publications.room(stream.id).messages)

            closed = Load(size=9, duration_s=0.4, in_flight=16)
            published, failed, _ = await publish_load([stream], closed, look)
            assert failed == 0
            assert 0 < most <= 16
            await all_have([reader], published)
            assert reader.contents == [bytes(9)] * published

    run(main())


def child(**lines: dict[str, object]) -> Child:
    said = Child("scripted", [])
    said.last = dict(lines)
    return said


def counted(delivered: int, cpu: int, delays: Delays | None = None) -> dict[str, object]:
    part = {"delivered": delivered, "duplicates": 2, "dropped": {"slow": 1, "forged": 2}}
    histogram = {"histogram": delays.to_dict()} if delays else {}
    return {"cpu_ms": cpu, "parts": {PART: {**part, **histogram}}}


def test_counts_of_subscribers_add_up_and_the_newest_line_counts() -> None:
    delays = Delays()
    delays.add(1_000, 3)
    children = [
        child(ready=counted(0, 1), stats=counted(5, 10)),
        child(ready=counted(0, 1), stats=counted(5, 10), stopped=counted(7, 20, delays)),
        child(ready={"cpu_ms": 4, "parts": {}}),
        child(),
    ]
    total = Counted(children, PART)
    assert total.each == [5, 7, 0, 0]
    assert (total.delivered, total.duplicates, total.dropped, total.cpu_ms) == (12, 4, 6, 34)
    assert (total.delays.count, total.delays.mean_us) == (3, 1_000)


def test_what_is_not_delivered_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SETTLE_S", 0.2)
    children = [child(stats=counted(5, 1)), child(stats=counted(4, 1))]
    assert run(load.all_delivered(children, PART, [5, 4]))
    assert not run(load.all_delivered(children, PART, [5, 5]))


def test_delays_of_one_load_do_not_count_in_the_next() -> None:
    before, after = Delays(), Delays()
    before.add(50_000, 10)
    after.merge(before)
    after.add(1_000, 5)
    between = load._since(after, before)
    assert (between.count, between.mean_us) == (5, 1_000)
    assert between.percentile_us(99) == pytest.approx(1_000, rel=0.02)


def test_a_subscriber_is_heard_once_more_unless_it_is_dead() -> None:
    async def main() -> None:
        async with load_network(publishers=1, subscribers=1) as (streams, local):
            [node] = local.nodes
            seen = node.last["stats"]
            await load._hear_again([node])
            assert node.last["stats"] is not seen
            assert (await measure(streams, [node], Load(rate=50.0, duration_s=0.2))).complete == 1.0
            await node.kill()
            await load._hear_again([node])  # of the dead nothing more is expected

    run(main())


def test_publishers_share_the_rate() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            first = await alice.create_stream("a")
            second: Stream = await bob.stream(first.id)
            readers = [await read(first), await read(second)]
            published, failed, _ = await publish_load(
                [first, second], Load(size=1, rate=400.0, duration_s=0.5), lambda done: None
            )
            assert (published, failed) == (200, 0)
            await all_have(readers, 200)
            publishers = [message.chain for message in readers[0].messages]
            assert sorted(publishers.count(chain) for chain in set(publishers)) == [100, 100]
            await eventually(lambda: len(readers[1].messages) == 200, "no more than that")

    run(main())
