"""Small charts as SVG text: their colours come from the page, so that they suit light and dark."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 14, 12, 44
MAX_SERIES = 8  # that a page has colours for
TICKS = 6


class Series(NamedTuple):
    """A line of a chart; it breaks off where there is no value."""

    name: str
    points: Sequence[tuple[float, float | None]]


class Axis(NamedTuple):
    """One direction of a chart: where values lie on it, and which are written beside it."""

    label: str
    place: Callable[[float], float]  # a value's place, from 0 to 1
    ticks: Sequence[float]


def line_chart(series: Sequence[Series], x: str, y: str, *, log_x: bool = False) -> str:
    """Draw lines; more than a page has colours for are left out, which the caller tells."""
    shown = [s for s in series if any(y is not None for _, y in s.points)][:MAX_SERIES]
    if not shown:
        return ""
    across = [point[0] for s in shown for point in s.points]
    up = [point[1] for s in shown for point in s.points if point[1] is not None]
    x_axis = log_axis(x, across) if log_x else linear_axis(x, min(across), max(across))
    y_axis = linear_axis(y, 0.0, max(up))
    lines = [_line(s, index, x_axis, y_axis) for index, s in enumerate(shown)]
    return _svg(x, y, [*_grid(x_axis, y_axis), *lines]) + _legend([s.name for s in shown])


def bar_chart(bars: Sequence[tuple[str, float]], x: str, y: str) -> str:
    """Draw bars side by side, each with its name below."""
    if not bars:
        return ""
    y_axis = linear_axis(y, 0.0, max(value for _, value in bars))
    slot = (WIDTH - LEFT - RIGHT) / len(bars)
    width = min(slot * 0.7, 48.0)
    parts = _rows(y_axis)
    for index, (name, value) in enumerate(bars):
        middle = LEFT + slot * (index + 0.5)
        top = _down(y_axis.place(value))
        parts.append(
            f'<rect class="bar" x="{middle - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}"><title>{escape(name)}: {show(value)}</title>'
            "</rect>"
        )
        if index % math.ceil(len(bars) / 24) == 0:
            parts.append(_text(middle, HEIGHT - BOTTOM + 16, name, "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x, "middle", "label"))
    return _svg(x, y, parts)


def show(value: float) -> str:
    """Write a number as people read it: three digits that matter, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1000 or (float(value).is_integer() and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.3g}"


# --- Axes -----------------------------------------------------------------------------------


def linear_axis(label: str, low: float, high: float) -> Axis:
    """Return an axis from one round number to another."""
    if high <= low:
        low, high = min(0.0, low), max(low + 1.0, 1.0)
    step = _round_step((high - low) / TICKS)
    first, last = math.floor(low / step) * step, math.ceil(high / step) * step
    count = round((last - first) / step)
    ticks = [round(first + i * step, 12) for i in range(count + 1)]
    return Axis(label, lambda value: (value - first) / (last - first), ticks)


def log_axis(label: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis; what is not above zero lies at its beginning."""
    positive = [value for value in values if value > 0] or [1.0]
    low = math.floor(math.log10(min(positive)) * 3) / 3
    high = max(math.ceil(math.log10(max(positive)) * 3) / 3, low + 1 / 3)
    steps = (1, 2, 5) if high - low < 3 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [m * 10.0**p for p in powers for m in steps if low <= math.log10(m * 10.0**p) <= high]
    return Axis(
        label, lambda v: (math.log10(v) - low) / (high - low) if v > 10**low else 0.0, ticks
    )


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * 0.999)


# --- Drawing --------------------------------------------------------------------------------


def _across(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _down(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _svg(x: str, y: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(y)} by {escape(x)}">{"".join(parts)}</svg>'
    )


def _rows(axis: Axis) -> list[str]:
    """Draw the lines across, their values, and what they are."""
    parts = []
    for tick in axis.ticks:
        at = _down(axis.place(tick))
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, at + 4, show(tick), "end"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle:.1f})"'
    parts.append(
        f'<text class="label" x="14" y="{middle:.1f}" text-anchor="middle" {turned}>'
        f"{escape(axis.label)}</text>"
    )
    return parts


def _grid(x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = _rows(y_axis)
    for tick in x_axis.ticks:
        at = _across(x_axis.place(tick))
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 16, show(tick), "middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 8, x_axis.label, "middle", "label"))
    return parts


def _line(series: Series, index: int, x_axis: Axis, y_axis: Axis) -> str:
    strokes: list[list[str]] = [[]]
    for x, y in series.points:
        if y is None:
            strokes.append([])
        else:
            place = f"{_across(x_axis.place(x)):.1f} {_down(y_axis.place(y)):.1f}"
            strokes[-1].append(place)
    # A stroke of no length shows as a dot, since the ends of lines are round.
    drawn = "".join(f"M{'L'.join(s if len(s) > 1 else 2 * s)}" for s in strokes if s)
    return f'<path class="line s{index}" d="{drawn}"><title>{escape(series.name)}</title></path>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    entries = (
        f'<li><i class="s{index}"></i>{escape(name)}</li>' for index, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(entries)}</ul>'
