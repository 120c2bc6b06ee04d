"""Zeros over pages and sectors of one storage node's file; tests/soak_damage.py has all of them."""

from pathlib import Path
from random import Random

import pytest

from live.storage.damaged_cluster import PAGE_BYTES, SECTOR_BYTES, DamagedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> DamagedCluster:
    return DamagedCluster(tmp_path)


def test_pages_of_zeros_before_a_start_are_reported_and_repaired_from_the_others(
    cluster: DamagedCluster,
) -> None:
    for at in [*cluster.places(PAGE_BYTES)[:3], *cluster.places(PAGE_BYTES)[3::8]]:
        cluster.damage_before_start(PAGE_BYTES, at)
    assert cluster.seen["refused"] >= 1, "the schema"
    assert cluster.seen["damaged"] > 8


def test_sectors_of_zeros_before_a_start_are_reported_and_repaired_from_the_others(
    cluster: DamagedCluster,
) -> None:
    for at in cluster.places(SECTOR_BYTES)[3::41]:
        cluster.damage_before_start(SECTOR_BYTES, at)
    assert cluster.seen["damaged"] > 8


def test_several_pages_of_zeros_are_reported_and_repaired_from_the_others(
    cluster: DamagedCluster,
) -> None:
    rng, places = Random(3), cluster.places(PAGE_BYTES)[3:]
    for _ in range(8):
        cluster.damage_before_start(PAGE_BYTES, *rng.sample(places, rng.randrange(2, 9)))
    assert cluster.seen["damaged"] > 5


def test_pages_of_zeros_in_a_running_node_are_reported_and_repaired_from_the_others(
    cluster: DamagedCluster,
) -> None:
    for at in [*cluster.places(PAGE_BYTES)[:2], *cluster.places(PAGE_BYTES)[5::10]]:
        cluster.damage_while_running(PAGE_BYTES, at)
    assert cluster.seen["damaged"] > 5


def test_zeros_in_the_write_ahead_log_of_a_running_node_are_repaired_from_the_others(
    cluster: DamagedCluster,
) -> None:
    for at in cluster.newest_wal_places()[::8]:
        cluster.damage_while_running(PAGE_BYTES, at, is_killed=True)
    assert cluster.seen["damaged"] > 8


def test_zeros_in_the_write_ahead_log_of_a_killed_node_are_copied_from_the_others(
    cluster: DamagedCluster,
) -> None:
    for at in cluster.wal_places()[::150]:
        cluster.damage_wal(PAGE_BYTES, at)
    assert cluster.seen["shorter"] > 8
