"""The report: every subject is there, it needs nothing from elsewhere, and says what is missing."""

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.live.telemetry import DROPPED
from anabranch.spark.page import Table
from anabranch.spark.report import MAX_WINDOWS, drawn_windows, gather, headlines, page_of, warnings
from anabranch.spark.sections import CAUSES, SECTIONS, over_time
from anabranch.spark.tables import CAUSES as KNOWN_CAUSES
from anabranch.spark.tables.windows import WINDOW_S
from anabranch.spark.telemetry import TABLES, holds_tables, read_tables, stage, write_tables
from anabranch.spark.traces import read_traces
from anabranch.traces.files import FULL

NAMES = ["delay", "time", "hops", "penalty", "redundancy", "coverage", "gaps", "load", "links"]
NAMES += ["slow", "prediction", "runs"]
PART = "0xaa/city#0"


def silent(what: str, done: float) -> None:
    assert 0 <= done <= 1, what


class Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.references: list[str] = []
        self.charts = 0
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "section":
            self.sections.append(given["id"] or "")
        self.charts += tag == "svg"
        self.references += [given[n] or "" for n in ("href", "src", "data") if n in given]
        assert tag not in ("script", "link", "iframe", "img"), tag

    def handle_data(self, data: str) -> None:
        self.text += data


def frame(kind: str, at: float, node: str, **more: object) -> dict[str, object]:
    of = {"part": PART, "publisher": "0xaa", "chain": "1", "number": int(at * 10) // 10}
    return {"kind": kind, "at": at, "node": node, **of, **more}


def trace() -> list[dict[str, object]]:
    """Node a publishes every 10 seconds; b and c want it, c misses the last for a full queue."""
    rows: list[dict[str, object]] = [
        {"kind": "subscribed", "at": 0.0, "node": node, "part": PART} for node in "bc"
    ]
    rows += [
        {"kind": "rtt", "at": 1.0, "node": n, "peer": p, "rtt_ms": 8.0} for n, p in ("ab", "bc")
    ]
    for at in (10.0, 20.0, 30.0):
        number = {"number": int(at)}
        rows.append(frame("published", at, "a", count=2, size_bytes=300) | number)
        rows.append(frame("sent", at, "a", peer="b", size_bytes=310) | number)
        rows.append(frame("received", at + 0.004, "b", peer="a", hops=1) | number)
        rows.append(frame("delivered", at + 0.004, "b", count=2, hops=1, delay_ms=4.0) | number)
        if at < 30.0:
            rows.append(frame("sent", at + 0.004, "b", peer="c", size_bytes=310) | number)
            rows.append(frame("received", at + 0.009, "c", peer="b", hops=2) | number)
            rows.append(frame("duplicate", at + 0.01, "c", peer="a") | number)
            rows.append(frame("delivered", at + 0.009, "c", count=2, hops=2, delay_ms=9.0) | number)
        else:
            rows.append(frame("dropped", at, "b", peer="c", reason="link-full") | number)
    rows.append({"kind": "noted", "at": 50.0, "node": "b", "what": FULL, "detail": ""})
    rows.append({"kind": "noted", "at": 51.0, "node": "b", "what": DROPPED, "detail": "5"})
    return rows


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "three.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in trace()))
    return path


def test_every_cause_that_a_gap_can_have_is_explained() -> None:
    assert set(CAUSES) == set(KNOWN_CAUSES)


def test_the_page_of_a_trace_has_every_subject_and_no_reference(
    spark: SparkSession, lines: Path, tmp_path: Path
) -> None:
    records = stage(read_traces(spark, str(lines), check=False), str(tmp_path))
    write_tables(records, str(tmp_path / "tables"), silent)
    assert holds_tables(str(tmp_path / "tables"))
    assert not holds_tables(str(tmp_path))
    read = read_tables(spark, str(tmp_path / "tables"))
    assert list(read) == list(TABLES)
    tables = gather(read, silent)
    html = page_of(tables, "Three nodes", "three.jsonl")
    page = Page(html)
    assert page.sections == NAMES
    assert len(page.sections) == len(SECTIONS)
    assert page.references == [f"#{name}" for name in NAMES]
    assert not re.search(r"https?://|@import|url\(", html)
    assert page.charts == 5  # delay, two over time, hops, gaps
    assert "The trace says nothing" not in page.text
    figures = {card.meaning: card.figure for card in headlines(tables)}
    assert figures["nodes"] == "3"
    assert figures["messages published"] == "6"
    assert figures["deliveries to applications"] == "10"
    assert figures["median delay"] == "4 ms"
    assert figures["hops to a subscriber, in the mean"] == "1.4"
    assert figures["deliveries missing, those who came and went included"] == "2"
    assert "a neighbour dropped the copy that was for it" in page.text
    assert len(warnings(tables)) == 2
    assert all(said in page.text for said in warnings(tables))


def test_all_of_a_long_time_is_drawn(spark: SparkSession) -> None:
    hours = [
        ("large", part, datetime.fromtimestamp(3600 * hour, UTC), 36, 5.0 if hour < 99 else 777.0)
        for part in ("s#0", "s#1")
        for hour in range(100)
    ]
    other = ("small", "s#0", datetime.fromtimestamp(0, UTC), 1, 9999.0)
    columns = "run string, part string, start timestamp, messages long, p99_ms double"
    frame = spark.createDataFrame([other, *hours], columns)
    table = drawn_windows(frame, [{"run": "large"}, {"run": "small"}])
    width_s = table.rows[0]["width_s"]
    assert width_s % WINDOW_S == 0
    assert 99 * 3600 / width_s < MAX_WINDOWS
    assert (table.rows[-1]["place"], len(table.rows)) == (99 * 3600 // width_s, 100)
    assert sum(row["messages"] for row in table.rows) == 7200
    runs = Table([{"run": "large"}, {"run": "small"}], 2)
    section = over_time({"runs": runs, "delay_windows": table})
    assert f"windows of {width_s:.0f} seconds of the largest run" in section.meaning
    assert "300,000" in section.body
    assert "800" in section.body
    assert "10,000" not in section.body


def test_a_trace_without_records_gives_a_page_that_says_so() -> None:
    page = Page(page_of({name: Table([], 0) for name in TABLES}, "t", "empty.jsonl"))
    assert page.sections == NAMES
    assert page.text.count("The trace says nothing about this.") == len(NAMES)
    assert "empty.jsonl: no records." in page.text
