"""Rates out of totals, as `anabranch top` shows them."""

from typing import Any

import pytest

from anabranch.live.rates import TOTALS, Rates

Json = dict[str, Any]


def report(node: str, age_s: float = 0.0, **totals: int) -> Json:
    return {
        "node": node,
        "age_s": age_s,
        **dict.fromkeys((*TOTALS, "unstored"), 0),
        **dict.fromkeys(("delay_mean_us", "delay_p50_us", "delay_p99_us"), 0),
        **totals,
    }


def part(*reports: Json, stream: str = "s", partition: int = 0, nodes: int | None = None) -> Json:
    size = len(reports) if nodes is None else nodes
    shown: Json = {"stream": stream, "partition": partition, "nodes": size, "links": size}
    return {**shown, "reports": list(reports)}


def answer(now: float, *parts: Json) -> Json:
    return {"now": now, "parts": list(parts), "truncated": False}


def look(rates: Rates, now: float, *reports: Json) -> tuple[Json, dict[str, Json]]:
    """Look at one part; return it, and its nodes by name."""
    seen = rates.update([answer(now, part(*reports))])
    return seen["streams"][0], {row["node"]: row for row in seen["nodes"]}


def test_the_first_look_has_totals_and_no_rates() -> None:
    first = report("a", delivered=50, dropped=2, missed=3, unstored=4, registry_age_s=80)
    stream, nodes = look(Rates(), 100.0, first)
    assert (stream["unstored"], nodes["a"]["unstored"]) == (4, 4)
    assert nodes["a"]["registry_age_s"] == 80
    assert (stream["nodes"], stream["links"], stream["delivered_per_s"]) == (1, 1, 0.0)
    assert (nodes["a"]["dropped"], nodes["a"]["missed"]) == (2, 3)
    assert (nodes["a"]["delivered_per_s"], nodes["a"]["cpu_percent"]) == (0.0, 0.0)


def test_rates_are_differences_over_the_time_between_two_reports() -> None:
    rates = Rates()
    look(rates, 100.0, report("a", 1.0, published=10, cpu_ms=500), report("b", delivered=5))
    stream, nodes = look(
        rates,
        104.0,
        report("a", 3.0, published=30, cpu_ms=1_000),  # made at 101, the one before at 99
        report("b", delivered=25, duplicates=8, delay_p50_us=2_000, delay_p99_us=9_000),
    )
    assert (stream["published_per_s"], stream["delivered_per_s"]) == (10.0, 5.0)
    assert (stream["delay_p50_ms"], stream["delay_p99_ms"]) == (2.0, 9.0)
    assert nodes["a"]["cpu_percent"] == 25.0
    assert (nodes["b"]["duplicates_per_s"], nodes["b"]["delay_p99_ms"]) == (2.0, 9.0)


def test_the_same_report_seen_twice_keeps_its_rate() -> None:
    rates = Rates()
    look(rates, 100.0, report("a", delivered=0))
    first, _ = look(rates, 102.0, report("a", delivered=20))
    for late in (0.3, 0.6, 1.9):
        again, _ = look(rates, 102.0 + late, report("a", late, delivered=20))
        assert again == first
    after, _ = look(rates, 104.0, report("a", delivered=30))
    assert (first["delivered_per_s"], after["delivered_per_s"]) == (10.0, 5.0)


def test_a_node_that_restarted_has_no_negative_rate() -> None:
    rates = Rates()
    look(rates, 100.0, report("a", delivered=1_000, cpu_ms=9_000))
    stream, nodes = look(rates, 102.0, report("a", delivered=10, cpu_ms=100))
    assert (stream["delivered_per_s"], nodes["a"]["cpu_percent"]) == (0.0, 0.0)
    stream, _ = look(rates, 104.0, report("a", delivered=50, cpu_ms=100))
    assert stream["delivered_per_s"] == 20.0


def test_a_tracker_whose_clock_is_behind_does_not_stop_the_rates() -> None:
    rates = Rates()
    look(rates, 10_000.0, report("a", delivered=10))
    stream, _ = look(rates, 500.0, report("a", delivered=30))
    assert stream["delivered_per_s"] == 0.0
    stream, _ = look(rates, 502.0, report("a", delivered=50))
    assert stream["delivered_per_s"] == 10.0


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_trackers_with_one_part_the_larger_wins(order: int) -> None:
    rates = Rates()
    rates.update([answer(100.0, part(report("a"), report("b")))])
    answers = [
        answer(999.0, part(report("a", delivered=7_000), nodes=1)),
        answer(102.0, part(report("a", delivered=20), report("b", delivered=20))),
    ]
    seen = rates.update(answers[::order])
    assert [(row["nodes"], row["delivered_per_s"]) for row in seen["streams"]] == [(2, 20.0)]


def test_the_parts_of_a_node_add_up_and_its_process_does_not() -> None:
    rates = Rates()
    for now, total in ((100.0, 0), (102.0, 20)):
        seen = rates.update(
            [
                answer(
                    now,
                    part(report("a", delivered=total, dropped=1, cpu_ms=total * 10)),
                    part(report("a", delivered=total, dropped=1, cpu_ms=total * 10), partition=1),
                )
            ]
        )
    assert [row["partition"] for row in seen["streams"]] == [0, 1]
    (node,) = seen["nodes"]
    assert (node["parts"], node["delivered_per_s"], node["dropped"]) == (2, 20.0, 2)
    assert node["cpu_percent"] == 10.0


def test_the_busiest_node_comes_first() -> None:
    rates = Rates()
    look(rates, 100.0, *(report(name) for name in "abc"))
    _, nodes = look(
        rates, 102.0, report("a", delivered=2), report("b", delivered=9), report("c", delivered=2)
    )
    assert list(nodes) == ["b", "a", "c"]


def test_who_is_gone_is_forgotten() -> None:
    rates = Rates()
    look(rates, 100.0, report("a", delivered=10), report("b"))
    _, nodes = look(rates, 102.0, report("b"))
    assert list(nodes) == ["b"]
    _, nodes = look(rates, 104.0, report("a", delivered=90), report("b"))
    assert nodes["a"]["delivered_per_s"] == 0.0


def test_no_tracker_and_no_part_are_nothing() -> None:
    assert Rates().update([]) == {"streams": [], "nodes": []}
    stream, nodes = look(Rates(), 1.0)
    assert (stream["nodes"], stream["delay_p50_ms"], nodes) == (0, 0.0, {})
