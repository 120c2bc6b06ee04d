import random

import numpy as np
import pytest

from anabranch.lab.experiment import OptionError
from anabranch.lab.kernels import from_all
from anabranch.lab.legacy_status import LegacyTracker, grow_legacy
from anabranch.lab.topologies import Topology
from anabranch.lab.underlays import AWS16, mean_delay_s
from anabranch.sim.network import Constant


def test_the_tracker_forgets_links_that_are_not_reported() -> None:
    tracker = LegacyTracker(2, random.Random(1))
    assert tracker.status(0, ()) == []
    assert tracker.status(1, ()) == [1, 0]
    assert tracker.near == {0: {1: None}, 1: {0: None}}
    tracker.status(2, ())
    assert all(len(near) == 2 for near in tracker.near.values())
    told = tracker.status(0, (1,))  # the connection to 2 does not stand yet
    assert set(told) == {0, 2}  # cut, and made again: there is nobody else


def test_what_overflows_is_cut() -> None:
    tracker = LegacyTracker(2, random.Random(1))
    for node in range(6):
        tracker.status(node, ())
    tracker.status(0, (1, 2, 3, 4))
    assert max(len(near) for near in tracker.near.values()) <= 2
    assert all(node in tracker.near[peer] for node, near in tracker.near.items() for peer in near)


def mean_link_s(topology: Topology) -> float:
    return float(np.mean(topology.graph().delays_s))


def test_near_neighbours_are_preferred() -> None:
    underlay = AWS16(256)
    topology = grow_legacy(underlay, 256, 4, "seed")
    assert mean_link_s(topology) < 0.9 * mean_delay_s(underlay, 256)
    degrees = [len(near) for near in topology.neighbours]
    assert max(degrees) <= 4
    assert np.mean(degrees) > 3.9
    assert np.isfinite(from_all(topology.graph())[0]).all()


def test_it_follows_from_the_seed_and_both_ends_agree() -> None:
    first, again, other = (grow_legacy(AWS16(40), 40, 4, seed) for seed in ("1", "1", "2"))
    assert first.neighbours == again.neighbours != other.neighbours
    for node, near in enumerate(first.neighbours):
        assert all(node in first.neighbours[peer] for peer in near)


def test_where_all_act_at_once_it_is_told_that_nothing_settles() -> None:
    with pytest.raises(OptionError, match="does not settle"):
        grow_legacy(Constant(20), 40, 4, "1")
