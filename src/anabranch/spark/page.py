"""Pieces of a page: tables, cards and sections as HTML, and numbers as people read them."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from anabranch.spark.charts import show

STYLE = Path(__file__).with_name("report.css")
SHOWN_ROWS = 15  # of a table; the rest is counted
KEPT_OF_AN_ADDRESS = 10  # characters; the rest is in the title

Row = dict[str, Any]

UNITS = {"_percent": " (%)", "_ms": " (ms)", "_bytes_per_s": " bytes/s", "_per_s": " /s"}
SHARES = ("share", "coverage", "steady_coverage", "useful")
BYTES = ("bytes", "sent_bytes", "received_bytes")
TIMES = ("first_at", "last_at", "start")


class Table(NamedTuple):
    """Some rows of a table, and how many it has."""

    rows: list[Row]
    total: int


class Card(NamedTuple):
    """A figure that everybody looks at first."""

    figure: str
    meaning: str


class Section(NamedTuple):
    """One subject: what it means in a sentence, and what there is to see."""

    name: str
    title: str
    meaning: str
    body: str


def table_html(table: Table, columns: Sequence[str], bar: str = "") -> str:
    """Write a table: of many rows the first, and how many more there are.

    Columns without any value are left out, and so is a run's or part's name if all have the same.
    The cells of `bar` are filled by their share of the greatest.
    """
    rows = table.rows[:SHOWN_ROWS]
    if not rows:
        return ""
    shown = [name for name in columns if _tells(name, table.rows)]
    widest = max((float(row[bar] or 0) for row in table.rows), default=0.0) if bar else 0.0
    heads = "".join(f"<th{_kind(name, rows)}>{escape(title_of(name))}</th>" for name in shown)
    lines = []
    for row in rows:
        cells = []
        for name in shown:
            text = _cell(name, row[name])
            if name == bar and widest > 0:
                share = 100 * float(row[name] or 0) / widest
                cells.append(f'<td class="share" style="--w:{share:.1f}%">{text}</td>')
            else:
                cells.append(f"<td{_kind(name, rows)}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = ""
    if table.total > len(rows):
        more = f'<p class="more">{len(rows)} of {table.total:,} rows are shown.</p>'
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def _tells(name: str, rows: Sequence[Row]) -> bool:
    values = {str(row[name]) for row in rows if row[name] not in (None, "")}
    return bool(values) and not (name in ("run", "part") and len(values) == 1)


def _kind(name: str, rows: Sequence[Row]) -> str:
    return ' class="name"' if any(isinstance(row[name], str) for row in rows) else ""


def title_of(name: str) -> str:
    """Return a column's name in words, with its unit."""
    for ending, unit in UNITS.items():
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " ") + unit
    if name in BYTES:
        return " ".join(reversed(name.split("_")))
    return name.removesuffix("_at").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return name_html(value)
    if name in TIMES:
        return time_of(value)
    if name in SHARES:
        return percent(value)
    if name in BYTES:
        return size_of(value)
    return show(value)


def name_html(text: str) -> str:
    """Write a name: an address in it is shortened, and stands in full where one points at it."""
    words = [
        f"{word[:KEPT_OF_AN_ADDRESS]}…" if word.startswith("0x") and len(word) > 20 else word
        for word in text.split("/")
    ]
    short = "/".join(words)
    return (
        escape(short) if short == text else f'<span title="{escape(text)}">{escape(short)}</span>'
    )


def plain_name(text: str) -> str:
    """Shorten the addresses in a name, where nothing can be pointed at."""
    return "/".join(
        f"{word[:KEPT_OF_AN_ADDRESS]}…" if word.startswith("0x") and len(word) > 20 else word
        for word in text.split("/")
    )


def percent(share: float) -> str:
    """Write a share; one that is not quite everything does not become 100 %."""
    text = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{'99.99' if text == '100' and share < 1 else text} %"


def size_of(count: float) -> str:
    """Write a number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{show(round(count, 1))} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def time_of(value: Any) -> str:
    """Write a moment, in UTC."""
    at = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def page_html(
    title: str,
    about: str,
    warnings: Iterable[str],
    cards: Iterable[Card],
    sections: Sequence[Section],
) -> str:
    """Put a page together: one file that needs nothing else."""
    warned = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    shown = "".join(
        f'<div class="card"><b>{escape(card.figure)}</b><span>{escape(card.meaning)}</span></div>'
        for card in cards
    )
    places = "".join(f'<a href="#{s.name}">{escape(s.title)}</a>' for s in sections)
    parts = "".join(
        f'<section id="{s.name}"><h2>{escape(s.title)}</h2>'
        f'<p class="meaning">{escape(s.meaning)}</p>'
        f"{s.body or '<p class=none>The trace says nothing about this.</p>'}</section>"
        for s in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text()}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="about">{escape(about)}</p>'
        f"{f'<ul class=warnings>{warned}</ul>' if warned else ''}"
        f'<div class="cards">{shown}</div><nav>{places}</nav>{parts}</main></body></html>\n'
    )
