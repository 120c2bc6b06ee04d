"""Frames that a living node holds, and no storage node has, are seen ten seconds into the calm."""

import pytest

from anabranch.core.messages.storage import FrameName
from anabranch.core.store import Truncate
from anabranch.sim.network import NO_FAULTS, PacketFaults
from anabranch.sim.stored_in_time import WITHIN_S
from sim.test_storage_checker import Bench


def look(bench: Bench, seconds: float) -> None:
    for _ in range(round(seconds)):
        bench.sim.run(bench.sim.now + 1.0)
        bench.checker.in_time.look()


def forget(bench: Bench, length: int = 9) -> None:
    """Let all storage nodes lose the last message, which members still hold."""
    for node in bench.cluster.storage:
        node.disk.logs.write([Truncate(bench.part, length)])


def test_run_in_which_all_is_stored_has_no_complaint() -> None:
    bench = Bench()
    look(bench, WITHIN_S + 3)
    assert bench.checker.violations == []
    assert bench.checker.in_time.checked == 10


def test_frame_that_is_held_and_not_stored_is_complained_of_once() -> None:
    bench = Bench()
    look(bench, WITHIN_S - 1)
    bench.sim.run(bench.sim.now + 1.0)
    forget(bench)
    bench.checker.in_time.look()
    look(bench, 5)
    assert ["is not stored after" in text for text in bench.checker.violations] == [True]


@pytest.mark.parametrize("what", ["dead", "full", "rotten", "slow", "loss", "apart"])
def test_while_a_fault_is_at_work_nothing_is_asked(what: str) -> None:
    bench = Bench()
    forget(bench)
    node = bench.cluster.storage[0]
    if what == "dead":
        bench.sim.crash(node)
    elif what == "full":
        node.disk.problem = "no space"
    elif what == "rotten":
        _, name = node.disk.logs.names(bench.part)[0]
        assert isinstance(name, FrameName)
        node.disk.rot.add(bench.part, name)
    elif what == "slow":
        node.disk.write_s = 1.0
    elif what == "loss":
        bench.sim.faults = PacketFaults(loss=0.01)
    else:
        node.side = 1
    look(bench, WITHIN_S + 2)
    assert bench.checker.in_time.checked == 0
    bench.sim.faults = NO_FAULTS
