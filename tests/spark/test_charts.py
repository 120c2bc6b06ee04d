"""Charts: values lie where they should, on round axes, and nothing breaks the page."""

import re
from xml.etree import ElementTree

import pytest

from anabranch.spark.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MAX_SERIES,
    RIGHT,
    TOP,
    WIDTH,
    Series,
    bar_chart,
    line_chart,
    linear_axis,
    log_axis,
    show,
)


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{svg}</div>")


def test_a_line_goes_from_corner_to_corner() -> None:
    root = parse(line_chart([Series("a", [(0, 0), (10, 100)])], "x", "y"))
    [path] = [p for p in root.iter("path") if "line" in p.attrib["class"]]
    corners = f"M{LEFT}.0 {HEIGHT - BOTTOM}.0L{WIDTH - RIGHT}.0 {TOP}.0"
    assert path.attrib["d"] == corners


def test_a_line_breaks_off_where_there_is_no_value_and_a_lone_point_is_a_dot() -> None:
    root = parse(line_chart([Series("a", [(0, 1), (1, 1), (2, None), (3, 1)])], "x", "y"))
    [path] = [p for p in root.iter("path") if "line" in p.attrib["class"]]
    assert [len(stroke.split("L")) for stroke in path.attrib["d"].split("M")[1:]] == [2, 2]


def test_names_are_text_and_only_so_many_lines_are_drawn() -> None:
    series = [Series(f"<b>{i}&", [(0, 1), (1, 2)]) for i in range(MAX_SERIES + 2)]
    root = parse(line_chart(series, "x", "y"))
    assert [item.text or item[0].tail for item in root.iter("li")] == [
        f"<b>{i}&" for i in range(MAX_SERIES)
    ]


def test_bars_are_as_high_as_their_values() -> None:
    root = parse(bar_chart([("one", 5.0), ("two", 10.0)], "x", "y"))
    heights = [float(rect.attrib["height"]) for rect in root.iter("rect")]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert [rect[0].text for rect in root.iter("rect")] == ["one: 5", "two: 10"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert line_chart([], "x", "y") == line_chart([Series("a", [(1, None)])], "x", "y") == ""
    assert bar_chart([], "x", "y") == ""


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1e-9), (3, 3), (-5, 7), (0, 123_456)])
def test_a_linear_axis_holds_its_values_between_round_ticks(low: float, high: float) -> None:
    axis = linear_axis("x", low, high)
    assert 0 <= axis.place(low) <= axis.place(high) <= 1
    assert 2 <= len(axis.ticks) <= 12
    assert axis.ticks == sorted(axis.ticks)


def test_a_logarithmic_axis_has_the_same_room_for_every_power() -> None:
    axis = log_axis("x", [0.0, 1.0, 10.0, 10_000.0])
    assert axis.place(0.0) == axis.place(1.0) == 0.0
    assert axis.place(10_000.0) == pytest.approx(1.0)
    assert axis.place(100.0) == pytest.approx(0.5)
    assert axis.ticks == [1.0, 10.0, 100.0, 1000.0, 10_000.0]
    assert log_axis("x", [0.0, 0.0]).place(0.0) == 0.0


def test_numbers_are_written_as_people_read_them() -> None:
    assert [show(v) for v in (0, 0.001234, 12.345, 7.0, 1234.5, 1e6)] == [
        *("0", "0.00123", "12.3", "7", "1,234", "1,000,000")
    ]
    assert not re.search(r"e\+", show(5e14))
