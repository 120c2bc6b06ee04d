"""A node that does as it is told, here in a network in memory."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from anabranch.lab.emulated_node import Answer, EmulatedNode, Plan, network_of
from anabranch.live.memory_network import MemoryNetwork
from anabranch.live.transports.delayed import Way
from support.waiting import within

A = b"a" * 20


def plan(index: int) -> Plan:
    return Plan(index, bytes([index + 1]) * 32, "", "", [(A, Way(0.1, 0.2))], "keys")


def test_a_plan_and_an_answer_survive_their_pipe() -> None:
    assert msgspec.json.decode(msgspec.json.encode(plan(1)), type=Plan) == plan(1)
    answer = Answer(1.5, 2.5, 3, [])
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer


def test_messages_of_others_are_timed_and_counted() -> None:
    async def test() -> None:
        async with MemoryNetwork(0.01) as memory, memory.join() as here, memory.join() as there:
            stream = await here.create_stream("emulation", public=("publish", "subscribe"))
            away = await there.stream(stream.id)
            one, other = EmulatedNode(plan(0), here, stream), EmulatedNode(plan(1), there, away)
            async with stream.subscribe(ordered=False) as near, away.subscribe() as far:
                await one.join(near)
                await other.join(far)
                one.publish(4)
                told = await other.tell()
                while not told.arrivals:
                    await asyncio.sleep(0.01)
                    told = await other.tell()
                assert (await one.tell()).arrivals == []  # its own do not count
                (arrival,) = told.arrivals
                assert (arrival.round, arrival.publisher) == (4, 0)
                assert arrival.hops >= 1
                assert arrival.delay_s >= 0.009
                assert told.at == pytest.approx(told.node_at, abs=0.5)
                one.stop()
                other.stop()

    asyncio.run(within(30, test()))


def test_a_network_is_joined_by_the_plans_own_key(tmp_path: Path) -> None:
    async def test() -> None:
        made = plan(1)
        made.network, made.key_store = f"anabranch://{'0' * 64}@127.0.0.1:1", str(tmp_path / "k")
        assert network_of(made).me.startswith("0x")

    asyncio.run(test())
