"""Questions to trackers: a line for each, bounded, each chain once at a time."""

import random

from anabranch.core.registry_reads import (
    ANSWER_S,
    MAX_READS,
    REFRESH_S,
    TOGETHER_S,
    Read,
    Reads,
    read_again_at,
)
from machines import NODES, START

A, B = NODES[:2]


def opened(*chains: str) -> Reads:
    reads = Reads()
    reads.open(A, chains)
    return reads


def test_what_is_wanted_is_asked_once() -> None:
    reads = opened("one")
    reads.want(A, "two")
    reads.want(A, "one")
    assert reads.begin(START) == [Read(1, A, "one", START), Read(2, A, "two", START)]
    assert reads.begin(START) == []
    assert reads.end(2, B) is None
    assert reads.end(3, A) is None
    assert reads.end(2, A) == Read(2, A, "two", START)
    assert reads.end(2, A) is None


def test_what_is_wanted_while_it_is_asked_is_marked() -> None:
    reads = opened("one")
    reads.begin(START)
    reads.want(A, "one")
    assert reads.begin(START) == []
    assert reads.end(1, A) == Read(1, A, "one", START, again=True)
    assert reads.begin(START) == []  # it is the reader's to ask again
    reads.want(A, "one")
    reads.unwant(A, "one")
    assert reads.begin(START) == []


def test_each_tracker_has_a_bounded_line_of_its_own() -> None:
    chains = [str(at) for at in range(MAX_READS + 5)]
    reads = opened(*chains)
    assert len(reads.begin(START)) == MAX_READS == reads.most_under_way
    reads.open(B, ["x"])
    assert [read.tracker for read in reads.begin(START)] == [B]
    reads.end(1, A)
    assert [read.chain for read in reads.begin(START)] == [chains[MAX_READS]]


def test_what_is_not_answered_in_time_is_due_again() -> None:
    reads = opened("one")
    reads.begin(START)
    assert reads.wakeup_at == START + ANSWER_S
    assert reads.overdue(START + ANSWER_S - 0.1) == []
    assert reads.overdue(START + ANSWER_S) == [Read(1, A, "one", START)]
    assert reads.wakeup_at is None
    assert reads.end(1, A) is None
    assert [read.ticket for read in reads.begin(START)] == [2]


def test_nothing_is_left_of_who_is_closed_and_of_what_is_forgotten() -> None:
    reads = opened("one", "two")
    reads.open(B, ["one"])
    reads.begin(START)
    reads.want(B, "two")
    reads.forget("two")
    assert reads.end(2, A) is None
    reads.close(A)
    assert reads.end(1, A) is None
    assert reads.begin(START) == []
    reads.forget("one")
    assert reads.wakeup_at is None
    assert reads.most_under_way == 0


def test_chains_are_read_again_in_a_few_moments_that_are_a_nodes_own() -> None:
    rng, now = random.Random(1), START + 0.7
    times = [read_again_at(START, now, rng) for _ in range(1_000)]
    assert len(set(times)) <= 0.5 * REFRESH_S / TOGETHER_S + 2
    assert min(times) > now + 0.75 * REFRESH_S - TOGETHER_S
    assert max(times) <= now + 1.25 * REFRESH_S
    assert set(times).isdisjoint(read_again_at(START + 0.5, now, rng) for _ in range(1_000))
