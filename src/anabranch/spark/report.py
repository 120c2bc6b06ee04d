"""The report: the tables of a run, or of a live network, on one page that needs nothing else."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from anabranch.live.telemetry import DROPPED
from anabranch.spark.charts import MAX_SERIES, show
from anabranch.spark.page import Card, Row, Table, page_html, percent, time_of
from anabranch.spark.sections import SECTIONS, Tables
from anabranch.traces.files import FULL

if TYPE_CHECKING:  # it is slow to import, and optional
    from pyspark.sql import DataFrame

MAX_ROWS = 20_000  # of a table that are looked at; of most there are far fewer
MAX_WINDOWS = 1_000  # that are drawn of what happened over time; a chart has fewer places across
CURVE_STEP = 5  # of the 1001 points of a distribution, every so manieth is drawn

# What comes first in each table, and so is shown if not all is.
ORDER = {
    "runs": "-records",
    "delays": "-deliveries",
    "hops": "hops",
    "penalties": "-pairs",
    "redundancy": "-frames",
    "coverage": "coverage",
    "gaps": "-messages",
    "prediction": "-pairs",
    "load": "-sent_bytes",
    "links": "-bytes",
    "slow_nodes": "-slow -late_ms",
    "notices": "-times",
}


def gather(
    frames: "Mapping[str, DataFrame]", progress: Callable[[str, float], None]
) -> dict[str, Table]:
    """Bring what the page shows from Spark: the first rows of each table, and their number."""
    gathered: dict[str, Table] = {}
    for index, (name, order) in enumerate(ORDER.items()):
        progress(name, index / (len(ORDER) + 2))
        gathered[name] = _first_rows(frames[name], order)
    progress("over time", len(ORDER) / (len(ORDER) + 2))
    gathered["delay_windows"] = drawn_windows(frames["delay_windows"], gathered["runs"].rows)
    progress("distribution", (len(ORDER) + 1) / (len(ORDER) + 2))
    gathered["distribution"] = _curves(frames["distribution"], gathered["delays"].rows)
    return gathered


def _first_rows(frame: "DataFrame", order: str) -> Table:
    from pyspark.sql.functions import asc, desc

    keys = [desc(key[1:]) if key.startswith("-") else asc(key) for key in order.split()]
    frame = frame.persist()  # to be counted as well
    try:
        rows = frame.orderBy(*keys).limit(MAX_ROWS).toArrow().to_pylist()
        return Table(rows, len(rows) if len(rows) < MAX_ROWS else frame.count())
    finally:
        frame.unpersist()


def drawn_windows(frame: "DataFrame", runs: list[Row]) -> Table:
    """Take the windows of the largest run, all parts together: `place` counts them from the first.

    Where there are more than can be drawn, several become one, `width_s` wide.
    """
    from pyspark.sql import functions as sf

    from anabranch.spark.tables.windows import WINDOW_S

    chosen = frame.where(sf.col("run") == sf.lit(runs[0]["run"] if runs else None))
    start = sf.col("start").cast("double")
    ends = chosen.agg(sf.min(start).alias("first"), sf.max(start).alias("last")).first()
    if ends is None or ends["first"] is None:
        return Table([], 0)
    windows = (ends["last"] - ends["first"]) // WINDOW_S + 1
    width_s = WINDOW_S * -(-windows // MAX_WINDOWS)  # rounded up
    place = sf.floor((start - ends["first"]) / width_s).cast("int")
    drawn = chosen.groupBy(place.alias("place")).agg(
        sf.sum("messages").alias("messages"),
        sf.max("p99_ms").alias("p99_ms"),
        sf.lit(width_s).alias("width_s"),
    )
    rows = drawn.orderBy("place").toArrow().to_pylist()
    return Table(rows, len(rows))


def _curves(frame: "DataFrame", delays: list[Row]) -> Table:
    """Take the curves of the parts with the most deliveries, and not every point of them."""
    from pyspark.sql.functions import col, lit, struct
    from pyspark.sql.functions import round as rounded

    wanted = [struct(lit(row["run"]), lit(row["part"])) for row in delays[:MAX_SERIES]]
    if not wanted:
        return Table([], 0)
    is_drawn = rounded(col("share") * 1000) % CURVE_STEP == 0
    chosen = frame.where(is_drawn & struct("run", "part").isin(*wanted))
    rows = chosen.orderBy("run", "part", "share").toArrow().to_pylist()
    return Table(rows, len(rows))


# --- The page -------------------------------------------------------------------------------


def page_of(tables: Tables, title: str, made: str) -> str:
    """Write the page; `made` says of what."""
    sections = [section(tables) for section in SECTIONS]
    return page_html(title, _about(tables, made), warnings(tables), headlines(tables), sections)


def _about(tables: Tables, made: str) -> str:
    runs = tables["runs"]
    records = sum(row["records"] for row in runs.rows)
    if not records:
        return f"{made}: no records."
    first = min(row["first_at"] for row in runs.rows)
    last = max(row["last_at"] for row in runs.rows)
    count = "1 run" if runs.total == 1 else f"{runs.total:,} runs"
    span = f"{time_of(first)} to {time_of(last)} UTC"
    return f"{made}: {records:,} records of {count}, {span}."


def warnings(tables: Tables) -> list[str]:
    """Return what makes the figures less than the whole truth."""
    said = []
    notices = {row["what"]: row for row in tables["notices"].rows}
    if (row := notices.get(FULL)) is not None:
        said.append(f"{row['times']} traces came to their limit: what happened after is missing.")
    if (row := notices.get(DROPPED)) is not None:
        said.append(
            f"{row['nodes']} nodes could not publish all of their telemetry: records are missing, "
            "and what they told of is missing in the figures."
        )
    if unreadable := sum(row["unreadable"] for row in tables["runs"].rows):
        said.append(f"{unreadable:,} lines could not be read as records.")
    return said


def headlines(tables: Tables) -> list[Card]:
    """Return the figures that everybody looks at first."""
    runs, delays = tables["runs"].rows, tables["delays"].rows
    cards = [
        Card(show(_most(runs, "nodes")), "nodes"),
        Card(show(sum(row["published"] for row in runs)), "messages published"),
        Card(show(sum(row["delivered"] for row in runs)), "deliveries to applications"),
    ]
    if delays:
        cards += [
            Card(_range(delays, "p50_ms", " ms"), "median delay"),
            Card(_range(delays, "p99_ms", " ms"), "delay that 1 in 100 exceeds"),
        ]
    if hops := tables["hops"].rows:
        total = sum(row["deliveries"] for row in hops)
        mean = sum(row["hops"] * row["deliveries"] for row in hops) / max(1, total)
        cards.append(Card(show(round(mean, 2)), "hops to a subscriber, in the mean"))
    if redundancy := tables["redundancy"].rows:
        cards.append(Card(_range(redundancy, "per_node", ""), "duplicates per node per message"))
    cards += _coverage_cards(tables)
    if any(row["error_percent"] is not None for row in tables["prediction"].rows):
        cards.append(
            Card(
                _range(tables["prediction"].rows, "error_percent", " %"),
                "error of the predicted mean delay",
            )
        )
    return cards


def _coverage_cards(tables: Tables) -> list[Card]:
    rows = tables["coverage"].rows
    if not (expected := sum(row["steady_expected"] for row in rows)):
        return []
    came = sum(row["steady_delivered"] for row in rows) / expected
    missing = sum(row["messages"] for row in tables["gaps"].rows)
    return [
        Card(percent(came), "of what subscribers that stayed should have had, they had"),
        Card(show(missing), "deliveries missing, those who came and went included"),
    ]


def _most(rows: list[Row], name: str) -> float:
    return max((row[name] for row in rows), default=0)


def _range(rows: list[Row], name: str, unit: str) -> str:
    """Write the value of a column, or from which to which it goes."""
    values = [row[name] for row in rows if row[name] is not None]
    if not values:
        return "–"
    low, high = show(round(min(values), 2)), show(round(max(values), 2))
    return f"{low}{unit}" if low == high else f"{low}–{high}{unit}"
