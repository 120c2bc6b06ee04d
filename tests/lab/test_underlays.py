import random
from pathlib import Path

import pytest

from anabranch.lab.underlays import (
    AWS16,
    INSIDE_MS,
    REGIONS,
    TABLE_MS,
    TRACKER_REGION,
    UNDERLAYS,
    check_underlay,
    make_underlay,
    mean_delay_s,
)

NODES = 32
IRELAND = REGIONS.index(TRACKER_REGION)


def test_the_table_is_the_papers() -> None:
    assert [len(row) for row in TABLE_MS] == [len(REGIONS)] * len(REGIONS)
    # Paper 001, section 5.4.5: the mean one-way delay of Table 5.1, diagonal included.
    mean_ms = sum(map(sum, TABLE_MS)) / len(REGIONS) ** 2
    assert mean_ms == pytest.approx(68.64, abs=0.005)
    # The round trips were halved, so both directions are about the same: a figure in the wrong
    # row or column would stand out.
    for a, row in enumerate(TABLE_MS):
        for b, delay_ms in enumerate(row):
            assert delay_ms == pytest.approx(TABLE_MS[b][a], rel=0.25, abs=1.5)


@pytest.mark.parametrize(
    ("source", "target", "delay_ms"),
    [
        ("eu-central-1", "eu-west-1", 12.59),
        ("eu-west-1", "eu-central-1", 11.49),
        ("us-east-1", "us-west-2", 37.46),
        ("sa-east-1", "ap-southeast-1", 172.10),
        ("us-east-1", "us-east-1", INSIDE_MS),
    ],
)
def test_delays_go_from_row_to_column(source: str, target: str, delay_ms: float) -> None:
    a, b = REGIONS.index(source), REGIONS.index(target)
    assert AWS16(NODES).delay_s(a, b + 16) == pytest.approx(delay_ms / 1000)


def test_every_region_has_as_many_nodes() -> None:
    underlay = AWS16(NODES)
    regions = [underlay.region(place) for place in range(NODES)]
    assert [regions.count(region) for region in range(16)] == [2] * 16


def test_places_after_the_nodes_are_the_trackers() -> None:
    underlay = AWS16(NODES)
    assert [underlay.region(place) for place in (NODES, NODES + 1, NODES + 7)] == [IRELAND] * 3
    assert AWS16(NODES + 1).region(NODES) == 0


def test_the_mean_delay_is_that_of_all_pairs_of_nodes() -> None:
    # Two nodes a region: each has 30 nodes elsewhere, two in each region, and one at home.
    elsewhere_ms = sum(TABLE_MS[a][b] for a in range(16) for b in range(16) if a != b)
    expected_ms = (4 * elsewhere_ms + 32 * INSIDE_MS) / (32 * 31)
    assert mean_delay_s(AWS16(NODES), NODES) == pytest.approx(expected_ms / 1000)


@pytest.mark.parametrize("name", UNDERLAYS)
def test_every_underlay_has_places_for_nodes_and_a_tracker(name: str) -> None:
    one, same = (UNDERLAYS[name](5, random.Random(3)) for _ in range(2))
    delays = [one.delay_s(a, b) for a in range(6) for b in range(6) if a != b]
    assert min(delays) > 0
    assert delays == [same.delay_s(a, b) for a in range(6) for b in range(6) if a != b]


@pytest.mark.parametrize("name", UNDERLAYS)
def test_the_mean_delay_is_that_of_every_pair(name: str) -> None:
    underlay = make_underlay(name, 40, random.Random(8))
    delays_s = [underlay.delay_s(a, b) for a in range(40) for b in range(40) if a != b]
    assert mean_delay_s(underlay, 40) == pytest.approx(sum(delays_s) / len(delays_s), rel=1e-12)


def test_a_file_is_an_underlay(tmp_path: Path) -> None:
    path = tmp_path / "three.csv"
    path.write_text("0.5,10,20\n11,0.5,30\n21,31,0.5\n")
    check_underlay(str(path))
    underlay = make_underlay(str(path), 7, random.Random(1))
    assert underlay.delay_s(1, 5) == 0.030
    assert underlay.delay_s(3, 6) == 0.0005
    assert underlay.delay_s(7, 1) == 0.010  # a tracker lies at the first row


def test_what_is_no_underlay_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be one of: aws16, .*csv file"):
        check_underlay("moon")
    with pytest.raises(ValueError, match=r"moon\.csv cannot be read"):
        check_underlay(str(tmp_path / "moon.csv"))
