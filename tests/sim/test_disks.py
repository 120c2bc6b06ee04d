"""Disks: what is stored survives a crash, what was on its way to the disk does not."""

import pytest

from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Answered,
    Effect,
    Event,
    KeepKey,
    Learned,
    Sizes,
    Store,
    Stored,
    Wakeup,
    Write,
)
from anabranch.core.store import Copy, Promise, Truncate
from anabranch.sim.disks import WRITE_S, Disk
from anabranch.sim.network import Application, Constant, Observer, SimNode
from anabranch.sim.simulator import START_AT, Simulator
from machines import PART
from storage_logs import Log, entries

NODE, AUTHOR = NodeId(b"n" * 20), NodeId(b"a" * 20)
CHANGE = Store(7, "network", 3, b"a change")


class Scripted:
    """A machine that wants one thing done when it is woken, and notes what it hears of it."""

    wakeup_at = None

    def __init__(self, *effects: Effect) -> None:
        self.effects = list(effects)
        self.saw: list[Event] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.saw.append(event)
        return self.effects if type(event) is Wakeup else []

    def sizes(self) -> Sizes:
        return {}


def world(*effects: Effect) -> tuple[Simulator, SimNode, Scripted]:
    sim, machine = Simulator(Constant(1), 1), Scripted(*effects)
    return sim, sim.add(NODE, 0, machine), machine


def test_a_change_is_acknowledged_when_it_is_on_the_disk_and_not_before() -> None:
    sim, node, machine = world(CHANGE)
    sim.tell(node, Wakeup())
    assert node.disk.rows == []
    sim.run(START_AT + WRITE_S / 2)
    assert (node.disk.rows, machine.saw) == ([], [Wakeup()])
    sim.run(START_AT + WRITE_S)
    assert node.disk.rows == [("network", 3, b"a change")]
    assert machine.saw == [Wakeup(), Stored(7)]


def test_a_crash_loses_what_was_on_its_way_and_keeps_what_was_stored() -> None:
    sim, node, _ = world(CHANGE)
    node.disk.rows.append(("network", 2, b"older"))
    sim.tell(node, Wakeup())
    sim.crash(node)
    reborn = Scripted()
    sim.restart(node, reborn)
    sim.run(START_AT + 1)
    assert node.disk.rows == [("network", 2, b"older")]
    assert reborn.saw == []


@pytest.mark.parametrize(("steps", "length"), [(0, 4), (1, 4), (2, 2)])
def test_power_cut_between_log_and_record_leaves_no_log_below_its_record(
    steps: int, length: int
) -> None:
    disk, log = Disk(), Log(entries(1, 4))
    disk.write(Write(1, (Copy(PART, 0, tuple(log.entries)), Promise(PART, 1, NODE))))
    disk.begin(Write(2, (Truncate(PART, 2), Promise(PART, 2, NODE))))
    disk.begin(Write(3, (Truncate(PART, 1),)))
    disk.steps_at_crash = lambda: steps
    disk.crash()
    [state] = disk.logs.states()
    assert (state.length, state.owed, state.is_restored) == (length, (0, 0), False)
    assert state.epoch == 1 + (steps == 2)
    disk.logs.forget(PART, 1)
    [state] = disk.logs.states()
    assert (state.length, state.owed) == (1, (0, length)), "opened again, the record was raised"


def test_power_cut_while_the_disk_is_full_leaves_all_as_it_was() -> None:
    disk = Disk()
    disk.begin(Write(1, (Promise(PART, 1, NODE),)))
    disk.problem, disk.steps_at_crash = "full", lambda: 2
    disk.crash()
    assert disk.logs.states() == []


def test_a_disk_that_fails_says_so_and_keeps_nothing() -> None:
    sim, node, machine = world(CHANGE)
    node.disk.problem = "full"
    sim.tell(node, Wakeup())
    sim.run(START_AT + 1)
    assert node.disk.rows == []
    assert machine.saw[-1] == Stored(7, "full")


def test_keys_survive_a_restart_and_are_kept_once() -> None:
    key = KeepKey("stream", AUTHOR, b"id", b"secret")
    sim, node, _ = world(key, key)
    sim.tell(node, Wakeup())
    sim.crash(node)
    sim.restart(node, Scripted())
    assert list(node.disk.keys.values()) == [key]


def test_the_registrys_word_reaches_the_application_and_who_watches() -> None:
    class Hears(Application, Observer):
        def __init__(self) -> None:
            self.heard: list[Learned | Answered] = []

        def told(self, node: SimNode, word: Learned | Answered, now: float = START_AT) -> None:
            assert (node.id, now) == (NODE, START_AT)
            self.heard.append(word)

    words: list[Effect] = [Learned("network", 2), Answered(3, None, "timeout")]
    sim, node, _ = world(*words)
    sim.application, sim.observer = application, observer = Hears(), Hears()
    sim.tell(node, Wakeup())
    assert application.heard == observer.heard == words
