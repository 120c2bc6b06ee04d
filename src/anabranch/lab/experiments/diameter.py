"""How many links is the farthest node away? Paper 000, section V-B.2, Equation 2, Figures 4 and 5.

The paper draws the bounds that almost all random regular graphs keep; we measure topologies of the
tracker beside them. The brackets of the equation are read as its source has them: the lower bound
is rounded down, the upper one up, and epsilon is as small as one likes.
"""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from anabranch.lab.degrees import DegreeUnit, degrees_of, random_links
from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, unseen
from anabranch.lab.kernels import Ints, eccentricities, graph_of_links
from anabranch.lab.pictures import save

REPEATS = 5
ALL_SOURCES = 4096  # with more nodes than that, ways from a sample of them are followed, and the
SAMPLED_SOURCES = 1024  # diameter is at least what is found
PAPER_NODES = 100_000  # Figures 4 and 5


def bounds(nodes: int, degree: int) -> tuple[int, int]:
    """Return Equation 2: between what the diameter almost surely lies, for many nodes."""
    base, log_n = math.log(degree - 1), math.log(nodes)
    lower = (
        1
        + math.floor(log_n / base)
        + math.floor(math.log((degree - 2) * log_n / (6 * degree)) / base)
    )
    upper = 1 + math.ceil(math.log(2 * degree * nodes * log_n) / base)
    return max(1, lower), upper


def cut(params: Params) -> list[DegreeUnit]:
    """Cut by the number of nodes, the degree and the repeat."""
    return [
        DegreeUnit(params, nodes, repeat, nodes * degree, degree)
        for nodes in params.nodes
        for degree in degrees_of(params)
        for repeat in range(params.repeats or REPEATS)
    ]


def measure(unit: DegreeUnit, progress: Progress = unseen) -> tuple[int, Ints]:
    """Return the diameter of a topology, and its links."""
    links = random_links(unit.nodes, unit.degree, unit.seed)
    graph = graph_of_links(unit.nodes, links)
    places = range(unit.nodes)
    if unit.nodes > ALL_SOURCES:
        places = random.Random(unit.seed).sample(places, SAMPLED_SOURCES)  # type: ignore[assignment]
    farthest = eccentricities(graph, np.array(places, dtype=np.int64))
    assert farthest.min() > 0, "the graph is not connected"
    progress(1)
    return int(farthest.max()), links


def rows(params: Params, results: Iterator[Any], samples: Samples | None) -> Iterator[Row]:
    """Summarise each number of nodes and degree."""
    repeats = params.repeats or REPEATS
    for nodes in params.nodes:
        for degree in degrees_of(params):
            found, links = zip(*islice(results, repeats), strict=True)
            if samples is not None:
                seed = f"{params.seed_of(nodes, 0)}/{degree}"
                samples.keep_topology(nodes, seed, links[0], degree=degree)
            lower, upper = bounds(nodes, degree)
            yield {
                "nodes": nodes,
                "degree": degree,
                "lower_bound": lower,
                "upper_bound": upper,
                "diameter_min": min(found),
                "diameter_mean": round(float(np.mean(found)), 4),
                "diameter_max": max(found),
                "within_bounds": sum(lower <= one <= upper for one in found),
                "sources": nodes if nodes <= ALL_SOURCES else SAMPLED_SOURCES,
                "repeats": repeats,
            }


def table(rows: Sequence[Row]) -> Table:
    """Put the bounds beside what was measured."""
    shown = Table(title=EXPERIMENT.title, box=box.SIMPLE, title_justify="left")
    for heading in ("nodes", "degree", "at least", "measured", "at most", "within", "sources"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        least, most = row["diameter_min"], row["diameter_max"]
        shown.add_row(
            *(str(row[key]) for key in ("nodes", "degree", "lower_bound")),
            str(least) if least == most else f"{row['diameter_mean']:.1f} ({least}-{most})",
            str(row["upper_bound"]),
            f"{row['within_bounds']}/{row['repeats']}",
            str(row["sources"]),
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw the upper bounds over the nodes (Figure 4) and over the degree (Figure 5)."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    left, right = figure.subplots(1, 2)
    degrees = sorted({row["degree"] for row in rows})
    sizes = np.unique(np.geomspace(32, PAPER_NODES, 400).astype(int))
    for degree, shade in zip(degrees, np.linspace(0.85, 0.1, len(degrees)), strict=True):
        color, mine = colormaps["viridis"](shade), [r for r in rows if r["degree"] == degree]
        uppers = [bounds(nodes, degree)[1] for nodes in sizes.tolist()]
        left.plot(sizes, uppers, color=color, label=f"d = {degree}", drawstyle="steps-post")
        found = [row["diameter_mean"] for row in mine]
        left.plot([row["nodes"] for row in mine], found, "o", color=color, markersize=5)
    left.set_xscale("log")
    left.set(xlabel="number of nodes (logarithmic)", title="Upper bounds; dots are measured")
    reach = range(degrees[0], max(degrees[-1], degrees[0] + 1) + 1)
    lower, upper = zip(*(bounds(PAPER_NODES, degree) for degree in reach), strict=True)
    right.fill_between(
        reach, lower, upper, color="#9bbbd4", alpha=0.4, label=f"bounds, {PAPER_NODES:,} nodes"
    )
    right.plot(reach, upper, color="#1f5f8b", label=f"upper bound, {PAPER_NODES:,} nodes")
    counts = sorted({row["nodes"] for row in rows})
    for nodes, marker in zip(counts, "osD^v<>P*X" * len(counts), strict=False):
        mine = [row for row in rows if row["nodes"] == nodes]
        means = [row["diameter_mean"] for row in mine]
        label = f"measured, {nodes:,} nodes"
        right.plot([r["degree"] for r in mine], means, marker, color="#b3471d", label=label)
    right.set(xlabel="degree", title="Over the degree")
    for axes in (left, right):
        axes.set(ylabel="diameter (links)", ylim=(0, None))
        axes.legend(frameon=False, fontsize=8, ncols=2)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(EXPERIMENT.title)
    save(figure, path)


EXPERIMENT = Experiment(
    name="diameter",
    title="Diameter of random regular topologies",
    about="how many links away the farthest node is (paper 000, Figures 4 and 5)",
    defaults=Params(nodes=(100, 1000, 10_000), degree=16),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
)
