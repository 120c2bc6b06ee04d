"""The figures of paper 000, section V-C, out of the traces of `propagation` runs.

Each is a Matplotlib figure, drawn from the few rows that it shows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from anabranch.core.errors import LocalError
from anabranch.spark.tables import distribution_by_size, penalty_by_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]  # a row of a table: Row.asDict(), or a dictionary
MAX_CURVES = 12  # more would hide each other; those left out are told
BLUE = "#1f5f8b"


def figure_7(records: DataFrame) -> "Figure":
    """Draw the distribution of the delay for each number of nodes."""
    rows = [row.asDict() for row in distribution_by_size(records).collect()]
    if not rows:
        raise LocalError("nothing was delivered in these traces, and so there is nothing to draw")
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(f"{row['nodes']} nodes", []).append(row)
    return draw_curves(curves, "Propagation delay of messages")


def figure_9(records: DataFrame) -> "Figure":
    """Draw the relative delay penalty over the number of nodes, with the range of the repeats."""
    rows = [row.asDict() for row in penalty_by_size(records).where("rdp IS NOT NULL").collect()]
    if not rows:
        raise LocalError(
            "these traces do not tell how long the straight way takes (records of kind unicast or "
            "rtt), and so not the delay penalty: take those that `lab run propagation` leaves"
        )
    figure, axes = _blank("Relative delay penalty")
    sizes = [row["nodes"] for row in rows]
    least, mean, most = ([row[name] for row in rows] for name in ("rdp_min", "rdp", "rdp_max"))
    axes.fill_between(
        sizes, least, most, color=BLUE, alpha=0.2, linewidth=0, label="least to greatest repeat"
    )
    axes.vlines(sizes, least, most, color=BLUE, alpha=0.3)
    axes.plot(sizes, mean, "o-", color=BLUE, label="mean")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="number of nodes (logarithmic)", ylabel="delay over that of the straight way")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    return figure


def draw_curves(curves: Mapping[str, Sequence[Row]], title: str) -> "Figure":
    """Draw distributions, named; rows have `share`, ascending, and `delay_ms`."""
    from matplotlib import colormaps

    figure, axes = _blank(title)
    shown = list(curves.items())[:MAX_CURVES]
    for place, (name, rows) in enumerate(shown):
        shade = 0.85 - 0.75 * place / max(1, len(shown) - 1)
        axes.plot(
            [row["delay_ms"] for row in rows],
            [row["share"] for row in rows],
            color=colormaps["viridis"](shade) if len(shown) > 1 else BLUE,
            label=name,
        )
    if len(curves) > MAX_CURVES:
        axes.plot([], [], " ", label=f"and {len(curves) - MAX_CURVES} more")
    axes.set(xlabel="delay (ms)", ylabel="share of the deliveries", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    if len(shown) > 1:
        axes.legend(frameon=False, loc="lower right")
    return figure


def _blank(title: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    axes.set_title(title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


FIGURES: "dict[str, Callable[[DataFrame], Figure]]" = {
    "figure-7": figure_7,
    "figure-9": figure_9,
}
