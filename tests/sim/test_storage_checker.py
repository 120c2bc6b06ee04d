"""Every rule of storage, broken once: a guard that cannot fail is worthless."""

import re
from collections.abc import Callable

import pytest

from anabranch.core.frames import peek
from anabranch.core.ids import number_of
from anabranch.core.machine import Deliver, Draft, HistoryEnded, Missed, Notice, Receipt
from anabranch.core.messages import Acknowledged
from anabranch.core.messages.storage import MAX_NUMBER, FrameName, Holding, Selection
from anabranch.core.store import Keep, Order, Page, Settle, Truncate
from anabranch.sim import storage_checker as checking
from anabranch.sim import stores
from anabranch.sim.network import Constant
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.storage_checker import READS, WITHIN_REACH_S, StorageChecker
from anabranch.sim.stored_cluster import StoredCluster


class Bench:
    """Three storage nodes, four nodes that read, and ten messages that all of them have."""

    def __init__(self) -> None:
        self.sim = Simulator(Constant(5), 1)
        self.cluster = StoredCluster(self.sim, 1, 4, storage=3, copies=2)
        self.part = self.cluster.parts[0]
        self.checker = StorageChecker(self.cluster, "random-regular")
        self.sim.observer = self.checker
        for node in self.cluster.peers:
            self.checker.joined(node, self.part, True)
            self.cluster.subscribe(node, self.part)
        self.sim.run(START_AT + 10)
        for n in range(10):
            draft = Draft(b"%d" % n, ticket=n + 1)
            self.cluster.offer(self.cluster.peers[0], self.part, [draft])
            self.sim.run(self.sim.now + 0.5)
        self.sim.run(self.sim.now + 5)
        self.checker.bounds()
        self.logs = self.cluster.storage[0].disk.logs
        self.reader = self.cluster.peers[1]

    def placed(self) -> list[tuple[int, bytes]]:
        found = self.logs.find(Page(self.part, Selection(), MAX_NUMBER, 1 << 20)).placed
        return [(row.offset, row.entry.frame) for row in found if row.offset is not None]

    def hand(self, frame: bytes, to: int = 99) -> None:
        deliver = Deliver(self.part, peek(frame), frame, 1, to=to)
        self.checker.handed(self.reader, deliver, self.sim.now)


def test_a_good_run_gives_no_complaint() -> None:
    bench = Bench()
    bench.checker.settled()
    reads = bench.checker.read_all()
    bench.sim.run(bench.sim.now + 5)
    bench.checker.check_reads(reads)
    bench.checker.complete([node.id for node in bench.cluster.peers])
    assert bench.checker.violations == []
    assert bench.checker.receipts == 10
    assert bench.checker.figures()["settled"] == 10


def test_accepted_loss_is_asked_for_no_more_and_what_lies_before_it_is() -> None:
    bench = Bench()
    bench.checker.accept_loss(bench.part, 6, 10)
    for node in bench.cluster.storage:
        node.disk.logs.forget(bench.part, 6)
    bench.checker.bounds()
    bench.checker.settled()
    assert bench.checker.violations == []
    bench.cluster.storage[0].disk.logs.forget(bench.part, 5)
    bench.checker.settled()
    assert any("acknowledged" in each for each in bench.checker.violations)


def test_logs_of_many_pages_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(stores, "MAX_PAGE_FRAMES", 3)
    monkeypatch.setattr(checking, "READS", (*READS[:2], Selection(last=4)))
    reads = bench.checker.read_all()
    assert len(reads) >= len(READS)
    bench.sim.run(bench.sim.now + 5)
    bench.checker.check_reads(reads)
    assert bench.checker.violations == []
    read = [bench.checker._histories[ticket] for *_, ticket in reads]
    assert [len(heads) for heads in read[:3]] == [10, 10, 4]
    for heads in read:
        del heads[1]
    bench.checker.check_reads(reads)
    assert len(bench.checker.violations) == len(reads)


def out_of_order(bench: Bench) -> None:
    (_, first), (_, second), *_ = bench.placed()
    bench.hand(second)
    bench.hand(first)


def untold_gap(bench: Bench) -> None:
    (_, first), _, (_, third), *_ = bench.placed()
    bench.hand(first)
    bench.hand(third)


def gap_that_could_be_filled(bench: Bench) -> None:
    bench.sim.run(bench.sim.now + WITHIN_REACH_S + 1)
    bench.checker.bounds()
    head = peek(bench.placed()[3][1])
    missed = Missed(1, bench.part, head.chain, head.previous, head.last + 1, "lazy")
    bench.checker.reader(bench.reader, missed, bench.sim.now)


def two_offsets(bench: Bench) -> None:
    storage, name = bench.cluster.storage[0].id, FrameName(b"c" * 28, 5)
    for offset in (5, 6):
        word = Acknowledged(bench.part, (Holding(name, offset, b"d" * 32),), b"s" * 64)
        bench.checker.reader(bench.reader, Receipt(1, ((storage, word),)), bench.sim.now)


def another_log(bench: Bench) -> None:
    frames = tuple(frame for _, frame in bench.placed())
    bench.logs.write([Truncate(bench.part, 5), Order(bench.part, 1, 1, frames[::-1])])
    bench.logs.write([Settle(bench.part, 10)])
    bench.checker.bounds()


def lost(bench: Bench) -> None:
    bench.logs.write([Truncate(bench.part, 9)])
    bench.checker.settled()


def held(bench: Bench) -> None:
    number = number_of(int(bench.sim.now * 1000), 0)
    frame = bench.placed()[0][1]
    other = frame[:45] + (0).to_bytes(8) + number.to_bytes(8) * 2 + frame[69:]
    for node in bench.cluster.storage:
        node.disk.logs.write([Keep(bench.part, (other,), 1)])
    bench.checker.settled()


def history_without_something(bench: Bench) -> None:
    reads = bench.checker.read_all()
    for _, _, ticket in reads:
        bench.checker.reader(bench.reader, HistoryEnded(ticket), bench.sim.now)
    bench.checker.check_reads(reads)


def history_that_does_not_end(bench: Bench) -> None:
    bench.checker.check_reads(bench.checker.read_all())


def reader_without_something(bench: Bench) -> None:
    bench.checker.died(bench.reader)
    bench.checker.complete([bench.reader.id])


def log_called_repaired(bench: Bench) -> None:
    node = bench.cluster.storage[0]
    _, name = node.disk.logs.names(bench.part)[2]
    node.disk.logs.damage(bench.part, name)
    bench.checker.noticed(node, Notice(bench.part, "repaired"), bench.sim.now)


@pytest.mark.parametrize(
    ("breaks", "complaint"),
    [
        (log_called_repaired, "calls .* repaired, and lacks 2 to 3"),
        (out_of_order, "out of order"),
        (untold_gap, "was not told"),
        (gap_that_could_be_filled, "had it"),
        (two_offsets, "signed 5 and 6"),
        (another_log, "another log|settled .* otherwise"),
        (lost, "lacks what|differ"),
        (held, "have no place"),
        (history_without_something, "without 10 frames"),
        (history_that_does_not_end, "did not end"),
        (reader_without_something, "never got 10 frames"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_may_not_be_is_seen(breaks: Callable[[Bench], None], complaint: str) -> None:
    bench = Bench()
    assert bench.checker.violations == []
    breaks(bench)
    assert any(re.search(complaint, text) for text in bench.checker.violations)
