"""Real processes on this machine; one small network serves all tests of what it measures."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId
from anabranch.core.tracked import TrackedNode
from anabranch.lab import emulator
from anabranch.lab.emulated_node import Answer, Plan
from anabranch.lab.emulator import Emulated, Emulation, NodeProcess, emulate, ways_from
from anabranch.lab.experiment import OptionError, Params, Unit
from anabranch.lab.underlays import AWS16
from anabranch.live.errors import AnabranchError
from anabranch.live.transports.delayed import Way
from anabranch.sim.network import Constant
from support.waiting import limit, within

NODES = 3
DELAY_MS = 40.0


async def no_wait(emulation: Emulation) -> None:
    pass


@pytest.fixture(scope="module")
def run() -> tuple[Emulated, list[float]]:
    heard: list[float] = []
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(emulator, "MEASURING_S", 0.2)
        quick.setattr(emulator, "LAST_S", 0.3)
        # A status comes every ten seconds; the first tells of round trips already.
        quick.setattr(Emulation, "_until_reported", no_wait)
        unit = Unit(Params((NODES,), degree=2), NODES)
        return emulate(unit, Constant(DELAY_MS), heard.append), heard


Run = tuple[Emulated, list[float]]


def test_every_message_takes_its_link_and_little_more(run: Run) -> None:
    emulated, _ = run
    off = ~np.eye(NODES, dtype=bool)
    delays_ms = 1000 * emulated.delays_s[off]
    assert np.all(delays_ms > DELAY_MS - 1)
    assert np.all(np.isnan(emulated.delays_s[~off]))
    assert set(emulated.hops[off]) == {1}
    assert emulated.links == ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))
    # Each of the two who have a message from its publisher passes it on to the other.
    assert 0 <= emulated.duplicates <= 2 / 3


def test_the_tracker_predicts_by_round_trips_that_know_the_delays(run: Run) -> None:
    assert 1000 * run[0].estimated_s > DELAY_MS


def test_progress_rises_to_one(run: Run) -> None:
    assert run[1] == sorted(run[1])
    assert run[1][-1] == 1


def test_a_machine_carries_so_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator.os, "cpu_count", lambda: 2)
    emulator.check_size(32)
    with pytest.raises(OptionError, match="take 32 for --nodes, or less"):
        emulator.check_size(33)


def test_one_network_waits_for_the_other() -> None:
    began = threading.Event()

    def other() -> None:
        with emulator.alone():
            began.set()

    waiting = threading.Thread(target=other)
    with emulator.alone():
        waiting.start()
        assert not began.wait(0.1)
    assert began.wait(limit(10))
    waiting.join()


def test_ways_lead_there_and_back() -> None:
    a, b = (NodeId(letter * 20) for letter in (b"a", b"b"))
    ways = ways_from(AWS16(2), 0, {a: 0, b: 1})
    assert ways == {b: Way(pytest.approx(0.01259), pytest.approx(0.01149))}


def test_a_node_that_fails_says_why(tmp_path: Path) -> None:
    async def test() -> None:
        plan = Plan(7, bytes([1]) * 32, "no address", "stream", [], str(tmp_path / "keys"))
        node = NodeProcess(plan, tmp_path / "errors")
        await node.start()
        with pytest.raises(AnabranchError, match=r"node 7 ended: (.|\n)*no address"):
            await node.answer()
        await node.stop()

    asyncio.run(test())


@pytest.mark.parametrize(("at", "node_at"), [(1.0, 0.0), (0.0, -1.0)])
def test_clocks_that_differ_are_noticed(at: float, node_at: float) -> None:
    class Elsewhere(NodeProcess):
        def __init__(self) -> None:
            pass

        async def ask(self, word: str) -> Answer:
            return Answer(emulator.time.time() + at, emulator.time.time() + node_at)

    emulation = Emulation(Unit(Params((2,)), 2), Constant(1), lambda done: None)
    with pytest.raises(AnabranchError, match="the clocks of this machine"):
        asyncio.run(emulation._compare_clocks(Elsewhere()))


def test_estimates_wait_until_everybody_has_reported_anew() -> None:
    emulation = Emulation(Unit(Params((2,)), 2), Constant(1), lambda done: None)
    known = {node: TrackedNode(1, "", node, (), heard_at=99.0) for node in emulation.ids}
    tracker = SimpleNamespace(nodes=lambda part: known)
    machine, driver = SimpleNamespace(tracker=tracker), SimpleNamespace(now=lambda: 100.0)
    emulation._tracker = SimpleNamespace(machine=machine, driver=driver)
    emulation._part = None

    async def test() -> None:
        waiting = asyncio.create_task(emulation._until_reported())
        for node in known.values():
            await asyncio.sleep(0.15)
            assert not waiting.done()
            node.heard_at = 101.0
        await within(5, waiting)

    asyncio.run(test())


def test_nodes_are_known_before_they_start() -> None:
    unit = Unit(Params((2,)), 2)
    first, again = (Emulation(unit, Constant(1), lambda done: None).ids for _ in range(2))
    assert first == again
    assert len(set(first)) == 2
    assert Identity(bytes([1]) * 32).node not in first
