"""Every needless repair is seen in a run without faults; and runs without faults need none."""

from collections.abc import Callable

import msgspec
import pytest

from anabranch.core.frames import peek
from anabranch.core.ids import FrameHead, NodeId
from anabranch.core.machine import Draft, Notice
from anabranch.core.messages import AskEntries, Fetched, Hand, Lacking, Resend
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, Entry, Selection
from anabranch.sim.calm_checker import CROSSED_S, KINDS, CalmChecker
from anabranch.sim.faults import Faults
from anabranch.sim.network import Constant, PacketFaults, SimNode
from anabranch.sim.random_scenario import random_calm_scenario
from anabranch.sim.scenario import Run, Scenario, is_calm, load
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.storage_checker import StorageChecker
from anabranch.sim.stored_cluster import StoredCluster

SEEDS = 20  # in the suite; `python tests/soak.py --calm` runs thousands
OLD = Selection(start=3)


class Bench:
    """Three storage nodes and four nodes that read, watched closely."""

    def __init__(self) -> None:
        self.sim = Simulator(Constant(5), 1)
        self.sim.watches_closely = True
        self.cluster = StoredCluster(self.sim, 1, 4, storage=3, copies=2)
        self.part = self.cluster.parts[0]
        self.checker = StorageChecker(self.cluster, "random-regular")
        self.checker.watch_calm()
        self.sim.observer = self.checker
        assert self.checker.calm is not None
        self.calm: CalmChecker = self.checker.calm
        for node in self.cluster.peers:
            self.checker.joined(node, self.part, True)
            self.cluster.subscribe(node, self.part)
        self.wait(10.0)
        self.reader, self.other = self.cluster.peers[1].id, self.cluster.peers[2].id
        self.first, self.second = (node.id for node in self.cluster.storage[:2])

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.sim.run(self.sim.now + 1.0)
            self.checker.bounds()

    def publish(self) -> bytes:
        """Publish a message; return its frame."""
        before = len(self.checker.frames)
        self.cluster.offer(self.cluster.peers[0], self.part, [Draft(b"message", ticket=before + 1)])
        [entry] = list(self.checker.frames.values())[before:]
        return entry[0]

    def page(self) -> Fetched:
        entry = Entry(1, int(START_AT * 1000), self.publish())
        return Fetched(self.part, 1, 0, 0, 0, NO_HASH, False, (entry,))


def test_run_with_messages_and_no_faults_repairs_nothing() -> None:
    bench = Bench()
    for _ in range(20):
        bench.publish()
        bench.wait(1.0)
    bench.wait(CROSSED_S + 1)
    assert bench.checker.violations == []
    assert set(bench.calm.counts) == set(KINDS)


def gap_fill(bench: Bench) -> None:
    chain = next(iter(bench.checker.frames), (b"c" * 28, 0))[0]
    wanted = Selection(whose=chain, upto=9, by_number=True)
    bench.checker.sent(node(bench), bench.first, Resend(1, bench.part, wanted))


def log_that_is_read(bench: Bench) -> None:
    bench.checker.sent(node(bench), bench.first, Resend(1, bench.part, OLD))


def entries_that_are_fetched(bench: Bench) -> None:
    bench.checker.sent(node(bench), bench.first, AskEntries(1, bench.part, 0, 5))


def notice_of_damage(bench: Bench) -> None:
    bench.checker.noticed(node(bench), Notice(bench.part, "damaged", "offsets 1-2"), bench.sim.now)


def frames_that_are_handed(bench: Bench) -> None:
    bench.checker.sent(node(bench), bench.first, Hand(bench.part, (bench.publish(),)))


def frames_that_a_comparison_brings(bench: Bench) -> None:
    bench.checker.sent(node(bench), bench.first, Lacking(ticket=1, frames=(bench.publish(),)))


def entry_that_is_copied_twice(bench: Bench) -> None:
    page = bench.page()
    bench.checker.sent(bench.cluster.storage[0], bench.second, page)
    bench.checker.sent(bench.cluster.storage[0], bench.second, page)


def signature_that_is_verified_twice(bench: Bench) -> None:
    for _ in range(2):
        bench.checker.verified(bench.reader, bench.other, b"digest", b"signature")


def frame_that_is_sent_twice(bench: Bench) -> None:
    bench.publish()
    bench.wait(1.0)
    [(name, crossed)] = bench.calm._crossed.items()
    a, b = next(iter(crossed))
    head = msgspec.structs.replace(frame_head(bench), chain=name[0], last=name[1])
    bench.checker.forwarded(bench.sim.nodes[a], [b], head)
    bench.wait(CROSSED_S + 1)


def link_that_is_left_out(bench: Bench) -> None:
    bench.publish()
    bench.wait(1.0)
    [crossed] = bench.calm._crossed.values()
    a, b = next(iter(crossed))
    crossed.pop((a, b), None)
    crossed.pop((b, a), None)
    bench.wait(CROSSED_S + 1)


def node(bench: Bench) -> SimNode:
    return bench.sim.nodes[bench.reader]


def frame_head(bench: Bench) -> FrameHead:
    return peek(next(iter(bench.checker.frames.values()))[0])


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        (gap_fill, "gap fills"),
        (log_that_is_read, "resends"),
        (entries_that_are_fetched, "repairs"),
        (notice_of_damage, "repairs"),
        (frames_that_are_handed, "handed frames"),
        (frames_that_a_comparison_brings, "handed frames"),
        (entry_that_is_copied_twice, "entries copied twice"),
        (signature_that_is_verified_twice, "signatures verified twice"),
        (frame_that_is_sent_twice, "frames sent twice"),
        (link_that_is_left_out, "links left out"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_needless_repair_in_a_calm_run_is_a_violation(
    does: Callable[[Bench], None], kind: str
) -> None:
    bench = Bench()
    does(bench)
    assert bench.calm.counts == {**dict.fromkeys(KINDS, 0), kind: 1}
    assert [kind in text for text in bench.checker.violations] == [True]


def test_question_for_the_length_of_a_log_is_no_repair() -> None:
    bench = Bench()
    bench.checker.sent(node(bench), bench.first, Resend(1, bench.part, Selection(start=MAX_NUMBER)))
    assert bench.checker.violations == []


def test_reader_of_history_may_ask_for_pages_and_verify_again() -> None:
    bench = Bench()
    bench.calm.readers.add(bench.reader)
    log_that_is_read(bench)
    signature_that_is_verified_twice(bench)
    assert bench.checker.violations == []


def test_frames_of_a_publisher_that_is_joining_may_be_handed_over() -> None:
    bench = Bench()
    bench.calm._linked_at[next(iter(bench.calm._links)), bench.cluster.peers[0].id] = bench.sim.now
    frames_that_are_handed(bench)
    assert bench.checker.violations == []


@pytest.mark.parametrize(
    ("scenario", "calm"),
    [
        (Scenario(), True),
        (Scenario(faults=Faults(packets=PacketFaults(loss=0.1))), False),
        (Scenario(faults=Faults(storage_crash_every_s=1.0)), False),
        (Scenario(byzantine={"forging": 1}), False),
        (Scenario(crash_at_s=(1.0,)), False),
    ],
)
def test_scenario_is_calm_where_nothing_goes_wrong(scenario: Scenario, calm: bool) -> None:
    assert is_calm(scenario) == calm


def test_calm_scenario_of_the_package_repairs_nothing() -> None:
    run = Run(load("calm"), seed=1).go()
    assert run.checker.violations == []
    assert run.checker.calm is not None
    assert len(run.checker.calm._verified) > 5_000


@pytest.mark.parametrize("first", range(0, SEEDS, 5))
def test_random_calm_scenarios_repair_nothing(first: int) -> None:
    for seed in range(first, first + 5):
        run = Run(random_calm_scenario(seed), seed).go()
        assert run.checker.violations == [], f"seed {seed}"


def test_storage_nodes_verify_a_frame_once_whichever_way_it_comes_first() -> None:
    seed = 100_008  # here the leader's page is often faster than the overlay
    run = Run(random_calm_scenario(seed), seed).go()
    assert run.checker.violations == []
    calm = run.checker.calm
    storage: set[NodeId] = {each.id for each in run.cluster.storage}
    assert calm is not None
    assert sum(verifier in storage for verifier, *_ in calm._verified) > 100
