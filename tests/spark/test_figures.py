"""The paper's figures show what the traces say."""

import io

import pytest
from matplotlib.figure import Figure
from pyspark.sql import SparkSession

from anabranch.core.errors import LocalError
from anabranch.spark.figures import MAX_CURVES, draw_curves, figure_7, figure_9
from anabranch.traces.schema import Delivered, Record, Unicast
from spark.records import A, frame, table_of


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file)
    return file.getvalue()


def test_curves_and_penalties_by_the_number_of_nodes(spark: SparkSession) -> None:
    records = None
    for run, nodes, delay_ms in (("a", 2, 10.0), ("b", 2, 20.0), ("c", 4, 60.0)):
        trace: list[Record] = []
        for node in map(str, range(nodes)):
            trace += [Delivered(1.0, node, *frame(1), 1, 1, delay_ms), Unicast(0.0, A, node, 5.0)]
        table = table_of(spark, trace, run)
        records = table if records is None else records.unionByName(table)
    assert records is not None
    cdf = figure_7(records)
    assert [line.get_label() for line in cdf.axes[0].lines] == ["2 nodes", "4 nodes"]
    assert [line.get_xdata()[500] for line in cdf.axes[0].lines] == [15, 60]  # the medians
    penalty = figure_9(records)
    (mean,) = penalty.axes[0].lines
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([2, 4], [3, 12])
    assert [label.get_text() for label in penalty.axes[0].get_xticklabels()] == ["2", "4"]
    assert all(png(figure).startswith(b"\x89PNG") for figure in (cdf, penalty))


def test_traces_that_tell_too_little_are_refused(spark: SparkSession) -> None:
    with pytest.raises(LocalError, match="nothing was delivered"):
        figure_7(table_of(spark, []))
    told: list[Record] = [Delivered(1.0, "b", *frame(1), 1, 1, 10.0), Unicast(0.0, A, "b", 5.0)]
    told += [Delivered(1.0, node, *frame(2), 1, 1, 20.0) for node in "cd"]
    short, long = table_of(spark, told[:2], "a"), table_of(spark, told[2:], "b")
    with pytest.raises(LocalError, match="how long the straight way takes"):
        figure_9(long)
    (mean,) = figure_9(short.unionByName(long)).axes[0].lines
    assert (list(mean.get_xdata()), list(mean.get_ydata())) == ([1], [2])


def test_too_many_curves_are_said_to_be_there() -> None:
    row = {"share": 0.5, "delay_ms": 1.0}
    figure = draw_curves({f"run {i}": [row] for i in range(MAX_CURVES + 3)}, "Delays")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert (len(labels), labels[-1]) == (MAX_CURVES + 1, "and 3 more")
