"""Counters, and a histogram against a list of everything."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import codec
from anabranch.core.errors import LocalError
from anabranch.core.ids import stream_part
from anabranch.core.messages import Report
from anabranch.core.messages.tracker import MAX_RTT_US
from anabranch.live.metrics import (
    BUCKETS,
    MAX_DELAY_US,
    MAX_PARTS,
    MAX_REASONS,
    Delays,
    Metrics,
    _bucket,
    _middle,
)
from machines import OTHER, OWNER, PART

DELAYS = st.integers(0, MAX_DELAY_US) | st.integers(0, 200) | st.integers(900, 100_000)


def histogram(*delays_us: int) -> Delays:
    delays = Delays()
    for delay_us in delays_us:
        delays.add(delay_us)
    return delays


def test_every_delay_has_a_bucket_and_its_middle_is_near() -> None:
    edges = [edge for bits in range(31) for edge in ((1 << bits) - 1, 1 << bits, (1 << bits) + 1)]
    some = {*range(3000), *edges, *(7**n for n in range(11))}
    delays = sorted(delay for delay in some if delay <= MAX_DELAY_US)
    places = [_bucket(delay) for delay in delays]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, BUCKETS - 1)
    assert [_bucket(_middle(place)) for place in range(BUCKETS)] == list(range(BUCKETS))
    for delay, place in zip(delays, places, strict=True):
        assert abs(_middle(place) - delay) <= delay / 60


@given(st.lists(DELAYS, min_size=1, max_size=300), st.sampled_from([0, 1, 50, 90, 99, 100]))
def test_percentiles_are_within_two_percent_of_the_nearest_rank(
    delays_us: list[int], percent: int
) -> None:
    exact = sorted(delays_us)[max(1, math.ceil(len(delays_us) * percent / 100)) - 1]
    delays = histogram(*delays_us)
    assert delays.percentile_us(percent) == pytest.approx(exact, rel=0.02)
    assert delays.max_us == max(delays_us)
    assert delays.mean_us == sum(delays_us) // len(delays_us)
    assert delays.count == len(delays_us)


@given(st.lists(st.tuples(DELAYS, st.integers(1, 50)), max_size=50))
def test_many_at_once_are_as_many_one_by_one(batches: list[tuple[int, int]]) -> None:
    together = Delays()
    for delay_us, count in batches:
        together.add(delay_us, count)
    single = histogram(*(delay_us for delay_us, count in batches for _ in range(count)))
    assert together.to_dict() == single.to_dict()


@given(st.lists(DELAYS, max_size=100), st.lists(DELAYS, max_size=100))
def test_two_histograms_add_up_even_through_json(one: list[int], two: list[int]) -> None:
    merged = Delays.from_dict(json.loads(json.dumps(histogram(*one).to_dict())))
    merged.merge(histogram(*two))
    assert merged.to_dict() == histogram(*one, *two).to_dict()
    assert merged.summary() == histogram(*one, *two).summary()


def test_an_empty_histogram_has_figures() -> None:
    assert set(Delays().summary().values()) == {0}


def test_what_is_out_of_range_is_counted_at_the_end() -> None:
    delays = histogram(-5, MAX_DELAY_US * 10)
    assert (delays.percentile_us(1), delays.max_us) == (0, MAX_DELAY_US * 10)
    assert delays.percentile_us(99) == pytest.approx(MAX_DELAY_US, rel=0.02)


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"sum_us": 1, "max_us": 1, "counts": [1]},
        {"sum_us": "x", "max_us": 1, "counts": {}},
        {"sum_us": 1, "max_us": 1, "counts": {str(BUCKETS): 1}},
        {"sum_us": 1, "max_us": 1, "counts": {"1": -1}},
    ],
)
def test_what_is_no_histogram_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(LocalError, match="not a histogram"):
        Delays.from_dict(written)


def busy() -> Metrics:
    metrics = Metrics()
    metrics.publish(PART, 3)
    metrics.publish(PART)
    metrics.deliver(PART, 8, 2_000)
    metrics.deliver(PART, 2, 50_000)
    metrics.duplicate(PART)
    metrics.duplicate(PART, 2)
    metrics.drop(PART, "future")
    metrics.drop(PART, "link-full", 2)
    metrics.drop(PART, "future")
    metrics.miss(PART, 7)
    return metrics


def test_a_report_has_totals_and_the_delays_since_the_last_one() -> None:
    metrics = busy()
    first = metrics.report(PART, 1000.0)
    assert first == Report(
        PART,
        published=4,
        delivered=10,
        duplicates=3,
        dropped=4,
        missed=7,
        delay_mean_us=11_600,
        delay_p50_us=first.delay_p50_us,
        delay_p99_us=first.delay_p99_us,
        cpu_ms=first.cpu_ms,
    )
    assert first.delay_p50_us == pytest.approx(2_000, rel=0.02)
    assert first.delay_p99_us == pytest.approx(50_000, rel=0.02)
    assert first.cpu_ms > 0
    metrics.deliver(PART, 1, 40)
    second = metrics.report(PART, 1010.0)
    assert (second.delivered, second.delay_mean_us, second.delay_p99_us) == (11, 40, 40)
    third = metrics.report(PART, 1020.0)
    assert (third.delivered, third.delay_mean_us, third.delay_p99_us) == (11, 0, 0)


def test_parts_are_counted_apart() -> None:
    metrics = busy()
    assert metrics.report(OTHER, 1000.0).delivered == 0
    metrics.deliver(OTHER, 1, 9)
    assert metrics.part(PART).delivered == 10
    assert metrics.delays().count == 11


def test_the_delays_of_the_whole_run_survive_reports() -> None:
    metrics, unreported = busy(), busy()
    metrics.report(PART, 1000.0)
    metrics.deliver(PART, 1, 7)
    unreported.deliver(PART, 1, 7)
    assert metrics.delays().to_dict() == unreported.delays().to_dict()


def test_a_snapshot_is_json() -> None:
    metrics = busy()
    metrics.bytes_in += 1_000
    metrics.drop(None, "unknown-part")
    metrics.report(PART, 1000.0)
    shown = json.loads(json.dumps(metrics.snapshot()))
    part = shown["parts"][str(PART)]
    assert part["dropped"] == {"future": 2, "link-full": 2}
    assert (part["delivered"], part["delay"]["max_us"], part["reported_at"]) == (10, 50_000, 1000)
    assert Delays.from_dict(part["histogram"]).summary() == part["delay"]
    assert shown["elsewhere"]["dropped"] == {"unknown-part": 1}
    assert (shown["bytes_in"], shown["bytes_out"]) == (1_000, 0)
    assert list(shown["parts"]) == [str(PART)]


def test_an_absurd_delay_makes_a_report_that_can_be_sent() -> None:
    metrics = Metrics()
    metrics.deliver(PART, 1, 10**15)
    report = metrics.report(PART, 1000.0)
    assert report.delay_mean_us == report.delay_p50_us == MAX_RTT_US
    assert codec.decode(codec.encode(report)) == report


def test_parts_and_reasons_are_bounded_and_nothing_is_lost() -> None:
    metrics = Metrics()
    for number in range(MAX_PARTS + 5):
        metrics.publish(stream_part(f"{OWNER}/{number}"))
    for number in range(MAX_REASONS + 5):
        metrics.drop(PART, f"reason-{number}")
    shown = metrics.snapshot()
    assert len(shown["parts"]) == MAX_PARTS
    assert shown["elsewhere"]["published"] == 5
    assert len(shown["elsewhere"]["dropped"]) == MAX_REASONS + 1
    assert shown["elsewhere"]["dropped"]["other"] == 5


def test_a_part_that_was_left_is_forgotten() -> None:
    metrics = busy()
    metrics.forget(PART)
    metrics.forget(PART)
    assert metrics.snapshot()["parts"] == {}
    assert metrics.report(PART, 1000.0).delivered == 0
