"""Who is told of which chains, and of how many at most."""

import random

import pytest

from anabranch.core import watches
from anabranch.core.ids import NodeId
from anabranch.core.watches import MAX_ABSENT, MAX_WATCHED, Watches
from chains import COPIER, SECOND, STREAM
from machines import NODES

ANN, BEN, EVE = NODES[1:4]


def watch(told: Watches, node: NodeId, count: int, exists: bool = True, first: int = 0) -> None:
    """Let a node read chains that have numbers for names."""
    for at in range(first, first + count):
        told.add(node, str(at), exists)


def watched(told: Watches, node: NodeId, upto: int = 100) -> list[int]:
    """Return of which of these a node is told."""
    return [at for at in range(upto) if node in told.of(str(at))]


def test_nodes_are_told_of_what_they_read_and_trackers_of_all() -> None:
    told = Watches()
    told.add(ANN, STREAM, True)
    told.add(ANN, STREAM, True)
    told.add(BEN, SECOND, True)
    told.add(COPIER, STREAM, True)
    told.add_all(COPIER, True)
    told.add(COPIER, SECOND, True)
    assert list(told.of(STREAM)) == [ANN, COPIER]
    assert list(told.of(SECOND)) == [BEN, COPIER]
    assert told.sizes()["watches"][0] == 2
    for node in (ANN, BEN, COPIER, EVE):
        told.forget(node)
    assert list(told.of(STREAM)) == []
    assert {size for size, _ in told.sizes().values()} == {0}


def test_a_node_that_reads_too_many_chains_is_told_of_the_newest() -> None:
    told = Watches()
    watch(told, ANN, MAX_WATCHED + 10)
    assert told.sizes()["chains a node watches"] == (MAX_WATCHED, MAX_WATCHED)
    assert list(told.of("9")) == []
    assert list(told.of("10")) == [ANN]
    assert told.sizes()["watches"][0] == MAX_WATCHED


def test_what_is_read_again_is_not_old() -> None:
    told = Watches()
    watch(told, ANN, MAX_WATCHED)
    told.add(ANN, "0", True)
    told.add(ANN, "one more", True)
    assert watched(told, ANN, 5) == [0, 2, 3, 4]


def test_chains_that_do_not_exist_take_little_room() -> None:
    told = Watches()
    told.add(ANN, STREAM, True)
    watch(told, ANN, MAX_ABSENT + 3, exists=False)
    assert told.sizes()["absent chains a node watches"] == (MAX_ABSENT, MAX_ABSENT)
    assert watched(told, ANN, 5) == [3, 4]
    assert list(told.of(STREAM)) == [ANN]


def test_a_chain_that_came_to_exist_is_like_all_others_once_it_is_read() -> None:
    told = Watches()
    told.add(ANN, STREAM, False)
    told.add(ANN, STREAM, True)
    watch(told, ANN, MAX_ABSENT + 3, exists=False)
    assert list(told.of(STREAM)) == [ANN]
    assert told.sizes()["watches"][0] == 1 + MAX_ABSENT


def test_whoever_watches_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHES", 10)
    told = Watches()
    told.add(BEN, STREAM, True)
    watch(told, EVE, 9)
    watch(told, ANN, 3)
    assert told.sizes()["watches"] == (10, 10)
    assert (watched(told, EVE), watched(told, ANN)) == ([3, 4, 5, 6, 7, 8], [0, 1, 2])
    assert list(told.of(STREAM)) == [BEN]
    watch(told, EVE, 1, first=20)
    assert watched(told, EVE) == [4, 5, 6, 7, 8, 20]
    told.forget(EVE)
    watch(told, ANN, 9)
    assert (watched(told, ANN), list(told.of(STREAM))) == (list(range(9)), [BEN])


def test_of_those_who_watch_most_what_does_not_exist_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHES", 3)
    told = Watches()
    told.add(EVE, STREAM, True)
    watch(told, EVE, 2, exists=False)
    told.add(ANN, STREAM, True)
    assert watched(told, EVE) == [1]
    assert list(told.of(STREAM)) == [EVE, ANN]


def test_strangers_cannot_take_the_place_of_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_STRANGERS", 1)
    told = Watches()
    for stranger in (ANN, BEN, ANN):
        told.add_all(stranger, False)
    told.add_all(COPIER, True)
    assert list(told.of(STREAM)) == [ANN, COPIER]
    told.forget(ANN)
    told.add_all(BEN, False)
    assert list(told.of(STREAM)) == [COPIER, BEN]


def test_whatever_comes_the_bounds_hold_and_nobody_has_more_than_who_had_to_yield(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "MAX_WATCHES", 40)
    monkeypatch.setattr(watches, "MAX_WATCHED", 15)
    monkeypatch.setattr(watches, "MAX_ABSENT", 5)
    rng, told = random.Random(1), Watches()
    for _ in range(5_000):
        node = rng.choice(NODES[:8])
        before = {each: len(watched(told, each, 30)) for each in NODES[:8]}
        if rng.random() < 0.01:
            told.forget(node)
            assert watched(told, node, 30) == []
            continue
        told.add(node, str(rng.randrange(30)), rng.random() < 0.7)
        after = {each: len(watched(told, each, 30)) for each in NODES[:8]}
        assert sum(after.values()) == told.sizes()["watches"][0]
        assert all(size <= bound for size, bound in told.sizes().values())
        for other in NODES[:8]:
            if other != node and after[other] < before[other]:
                assert before[other] == max(before.values())
