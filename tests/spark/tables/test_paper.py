"""The pipeline finds in the traces of the lab what the lab found itself."""

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.lab.experiment import Params, Samples
from anabranch.lab.experiments.propagation import EXPERIMENT
from anabranch.spark.tables import (
    coverage,
    distribution_by_size,
    propagation,
    shared,
    table_2,
    table_3,
)
from anabranch.spark.traces import read_traces


def rows_of(table: DataFrame) -> list[dict[str, object]]:
    return [row.asDict() for row in table.collect()]


# What a row says of the options, of which a trace knows nothing.
OPTIONS = ("overlay", "underlay", "legacy_status", "learning_s", "processing_ms")


def test_tables_and_curves_are_those_of_the_lab(spark: SparkSession, tmp_path: Path) -> None:
    samples = Samples()
    params = Params((5, 12), 2, underlay="plane", traces=str(tmp_path))
    rows = list(EXPERIMENT.run(params, samples=samples))
    names = [f"propagation-n{nodes}-r{repeat}.parquet" for nodes in (12, 5) for repeat in (0, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert rows == list(EXPERIMENT.run(Params((5, 12), 2, underlay="plane")))
    with shared(read_traces(spark, tmp_path)) as records:
        labs = [{k: v for k, v in row.items() if k not in OPTIONS} for row in rows]
        assert rows_of(propagation(records)) == labs
        for ours, lab in zip(rows_of(table_2(records)), labs, strict=True):
            least, most = lab["mean_ms_min"], lab["mean_ms_max"]
            assert {key: ours[key] for key in list(ours)[:4]} == {
                key: lab[key] for key in ("nodes", "mean_ms_min", "mean_ms", "mean_ms_max")
            }
            assert ours["difference_ms"] == pytest.approx(most - least, abs=0.0011)
            assert ours["difference_percent"] == pytest.approx(100 * (most / least - 1), abs=0.01)
        for ours, lab in zip(rows_of(table_3(records)), labs, strict=True):
            assert (ours["nodes"], ours["measured_ms"]) == (lab["nodes"], lab["mean_ms"])
            assert (ours["estimated_ms"], ours["mape"]) == (
                lab["estimated_ms"],
                lab["error_percent"],
            )
        curves = rows_of(distribution_by_size(records))
        for nodes in params.nodes:
            curve = [row["delay_ms"] for row in curves if row["nodes"] == nodes]
            shares = [row["share"] for row in curves if row["nodes"] == nodes]
            np.testing.assert_allclose(curve, np.quantile(samples[nodes], shares), atol=1e-9)
        assert {row["coverage"] for row in rows_of(coverage(records))} == {1.0}
