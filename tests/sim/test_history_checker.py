"""A history that is read under faults is complete, or names what is lost."""

import pytest

from anabranch.core.frames import peek
from anabranch.core.machine import HistoryEnded
from anabranch.core.messages.storage import Span
from anabranch.sim.history_checker import HistoryChecker
from sim.test_storage_checker import Bench


def opened(bench: Bench) -> tuple[HistoryChecker, int]:
    """A history that was asked for, and of which nothing has come yet."""
    histories = bench.checker.histories
    histories.open(bench.reader, bench.part)
    [ticket] = histories._histories
    return histories, ticket


def test_history_that_is_read_gives_no_complaint() -> None:
    bench = Bench()
    histories, ticket = opened(bench)
    bench.sim.run(bench.sim.now + 5)
    histories.check()
    assert bench.checker.violations == []
    assert len(histories._histories[ticket].got) == 10
    assert ticket not in bench.cluster.reading, "it is closed"


def test_history_without_an_end_is_seen() -> None:
    bench = Bench()
    histories, _ = opened(bench)
    histories.check()
    assert ["does not end" in text for text in bench.checker.violations] == [True]


@pytest.mark.parametrize(
    ("ended", "good"),
    [
        (HistoryEnded(0), False),
        (HistoryEnded(0, "damaged", (Span(4, 5),)), True),
        (HistoryEnded(0, "damaged", (Span(5, 6),)), False),
        (HistoryEnded(0, "no answer in time"), True),
    ],
)
def test_history_that_lacks_a_frame_must_name_it(ended: HistoryEnded, good: bool) -> None:
    bench = Bench()
    histories, ticket = opened(bench)
    for offset, frame in bench.placed():
        if offset != 4:
            histories.take(ticket, peek(frame))
    histories.end(HistoryEnded(ticket, ended.problem, ended.lost))
    histories.check()
    assert (bench.checker.violations == []) == good


def test_history_of_a_node_that_died_is_forgotten() -> None:
    bench = Bench()
    histories, ticket = opened(bench)
    bench.checker.died(bench.reader)
    assert ticket not in histories
