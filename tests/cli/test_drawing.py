"""The drawing of an overlay, read back as XML."""

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import pytest

from anabranch.cli.drawing import SIZE, draw_topology

SVG = "{http://www.w3.org/2000/svg}"

Rtts = Mapping[tuple[str, str], float | None]


def node(number: int) -> str:
    return f"0x{number:06x}" + "0" * 34


def part(count: int, rtts: Rtts, stream: str = "0x1/cars") -> dict[str, Any]:
    """Let `count` nodes have these links, each said by both its ends."""
    both = {**rtts, **{(b, a): rtt for (a, b), rtt in rtts.items()}}
    topology = {
        node(number): {
            "address": "",
            "neighbours": [
                {"node": b, "rtt_ms": rtt} for (a, b), rtt in both.items() if a == node(number)
            ],
        }
        for number in range(count)
    }
    return {"stream": stream, "partition": 2, "nodes": count, "topology": topology}


def drawn(shown: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(draw_topology(shown))


def texts(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def ring(count: int) -> dict[tuple[str, str], float | None]:
    return {(node(n), node((n + 1) % count)): 10.0 + n for n in range(count)}


def test_every_node_and_every_link_is_drawn_once() -> None:
    svg = drawn(part(12, ring(12)))
    title, legend, *names = texts(svg)
    assert title == "0x1/cars#2: 12 nodes, 12 links"
    assert "21.0 ms" in legend
    assert names == [node(n)[:8] for n in range(12)]
    circles = [(c.get("cx"), c.get("cy")) for c in svg.iter(f"{SVG}circle")]
    assert len(set(circles)) == 12
    ends = [
        frozenset(((e.get("x1"), e.get("y1")), (e.get("x2"), e.get("y2"))))
        for e in svg.iter(f"{SVG}line")
    ]
    assert len(ends) == len(set(ends)) == 12
    assert set(ends) == {frozenset((circles[n], circles[(n + 1) % 12])) for n in range(12)}


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_every_node_lies_on_the_sheet(count: int) -> None:
    svg = drawn(part(count, {}))
    places = [(float(c.get("cx", -1)), float(c.get("cy", -1))) for c in svg.iter(f"{SVG}circle")]
    assert len(places) == count
    assert all(0 < x < SIZE and 0 < y < SIZE for x, y in places)


def test_slow_links_are_redder_than_fast_ones() -> None:
    fast, slow, unknown = (node(0), node(1)), (node(1), node(2)), (node(2), node(3))
    svg = drawn(part(4, {fast: 1.0, slow: 100.0, unknown: None}))
    first, second, third = (line.get("stroke", "") for line in svg.iter(f"{SVG}line"))

    def red(colour: str) -> int:
        return int(colour.removeprefix("rgb(").split(",")[0])

    assert red(first) < red(second)
    assert third.startswith("#")


@pytest.mark.parametrize("end", [0, 1])
def test_a_round_trip_that_one_end_knows_is_drawn(end: int) -> None:
    shown = part(2, {(node(0), node(1)): None})
    shown["topology"][node(end)]["neighbours"][0]["rtt_ms"] = 8.0
    (line,) = drawn(shown).iter(f"{SVG}line")
    assert line.get("stroke", "").startswith("rgb(")


def test_a_neighbour_that_is_not_shown_is_no_link() -> None:
    svg = drawn(part(2, {(node(0), node(1)): 1.0, (node(1), node(9)): 1.0}))
    assert len(list(svg.iter(f"{SVG}line"))) == 1
    assert "2 nodes, 1 links" in texts(svg)[0]


def test_a_part_without_nodes_is_an_empty_drawing() -> None:
    svg = drawn(part(0, {}))
    assert list(svg.iter(f"{SVG}circle")) == []


def test_names_are_text_whatever_they_hold() -> None:
    shown = part(1, {}, stream="0x1/<&>")
    shown["topology"] = {"<a&b>": {"address": "", "neighbours": []}}
    title, _, name = texts(drawn(shown))
    assert title.startswith("0x1/<&>#2")
    assert name == "<a&b>"
