import json
import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from anabranch.cli.lab import app
from anabranch.core.errors import LocalError
from anabranch.spark.sweep import (
    BATCH_BYTES,
    MOST_WAVES,
    UNITS_PER_CORE,
    compute_wave,
    fan_out,
    on_spark,
    wave_size,
)


def waves(units: int, cores: int) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < units:
        sizes.append(wave_size(units, sum(sizes), cores))
    assert sum(sizes) == units
    return sizes


@pytest.mark.parametrize("cores", [1, 2, 3, 16, 200])
def test_waves_are_few_and_even_and_feed_all_cores(cores: int) -> None:
    for units in (1, 7, 16, 17, 33, 100, 279, 1000, 12_345):
        sizes = waves(units, cores)
        assert len(sizes) <= MOST_WAVES
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == 1 or min(sizes) >= UNITS_PER_CORE * cores - 1


def test_results_come_in_the_order_of_the_units(spark: SparkSession) -> None:
    units = [(7 * number) % 100 for number in range(100)]
    expected = [math.factorial(unit) for unit in units]
    assert list(fan_out(spark, math.factorial, units)) == expected
    for tasks in (1, 3, 7):
        assert list(compute_wave(spark, math.factorial, units[:9], tasks)) == expected[:9]
    assert list(fan_out(spark, math.factorial, [])) == []


def test_large_results_come_too(spark: SparkSession) -> None:
    sizes = [BATCH_BYTES, 3, BATCH_BYTES, 0, 1]
    assert list(compute_wave(spark, bytes, sizes, 2)) == [bytes(size) for size in sizes]


def test_results_come_before_all_are_computed(spark: SparkSession) -> None:
    results = fan_out(spark, int, ["1"] * 16 + ["2"] * 15 + ["tea"])
    assert [next(results) for _ in range(16)] == [1] * 16
    with pytest.raises(Exception, match="invalid literal"):
        next(results)


def test_an_error_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(LocalError) as caught:
        list(on_spark("sweep", None)(int, ["1", "tea"]))
    assert str(caught.value) == "ValueError: invalid literal for int() with base 10: 'tea'"
    assert spark.range(2).count() == 2  # the session was there before, and still is


def small_workload(folder: Path) -> str:
    lines = [{"kind": "topic", "name": "tea"}]
    for node in range(4):
        events = [[place, "tea"] for place in range(node, 8, 4)]
        lines.append({"kind": "node", "node": str(node), "subscriptions": ["tea"]})
        lines[-1]["events"] = events  # type: ignore[assignment]
    path = folder / "small.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_every_experiment_has_the_same_rows_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    for arguments in (
        ["aws16", "--nodes", "3,20"],
        ["randomness", "--nodes", "8,12", "--repeats", "25"],
        ["propagation", "--nodes", "8,12", "--repeats", "3"],
        ["workload", "--nodes", "4", "--data", small_workload(tmp_path), "--repeats", "2"],
    ):
        here = CliRunner().invoke(app, ["run", *arguments, "--json"])
        assert here.exit_code == 0
        out = tmp_path / arguments[0]
        there = CliRunner().invoke(
            app, ["run", *arguments, "--json", "--engine", "spark", "--out", str(out)]
        )
        assert there.exit_code == 0, there.stderr
        assert there.stdout == here.stdout != ""
        assert json.loads((out / f"{arguments[0]}.options.json").read_text())["engine"] == "spark"
        assert (out / f"{arguments[0]}.png").stat().st_size > 10_000
