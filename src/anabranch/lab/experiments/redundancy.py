"""How many copies come to a node? Paper 000, Equation 4 and Figure 6; paper 001, section 5.3.1.

If everybody passes a message on in the instant in which it comes, to all but who sent it, a node
gets d - 2 + 2/N copies beside the first. Nodes take a while to read what comes, and do not send to
those whose copies they have got meanwhile: with delays, there are fewer. Paper 001 saw that, too.
"""

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
from anabranch.lab.kernels import Ints, duplicates_of
from anabranch.lab.pictures import save
from anabranch.lab.topologies import Topology
from anabranch.lab.underlays import make_underlay

PAPER_NODES = 64  # four in each of sixteen places
REPEATS = 20
READING_MS = 0.3  # how long a node takes to read what comes, unless it is told


def expected(nodes: int, degree: int) -> float:
    """Return Equation 4, for a graph that may have a slot unused, or too few nodes for d."""
    links = nodes * min(degree, nodes - 1) // 2
    return (2 * links - 2 * (nodes - 1)) / nodes


def reading_s(params: Params) -> float:
    """Return how long it takes a node to read what comes."""
    return READING_MS / 1000 if params.processing_ms is None else params.processing_s


def cut(params: Params) -> list[DegreeUnit]:
    """Cut by the number of nodes, the degree and the repeat."""
    return [
        DegreeUnit(params, nodes, repeat, nodes * nodes * degree, degree)
        for nodes in params.nodes
        for degree in degrees_of(params)
        for repeat in range(params.repeats or REPEATS)
    ]


def measure(unit: DegreeUnit, progress: Progress = unseen) -> tuple[float, float, Ints]:
    """Return the copies beside the first, for an instant flood and a real one, and the links."""
    nodes, read_s = unit.nodes, reading_s(unit.params)
    links = random_links(nodes, unit.degree, unit.seed)
    underlay = make_underlay(unit.params.underlay, nodes, random.Random(f"{unit.seed}/underlay"))
    neighbours: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in links.tolist():
        neighbours[a].append(b)
        neighbours[b].append(a)
    graph = Topology(neighbours, underlay, read_s).graph()
    instant = sum(duplicates_of(graph, source) for source in range(nodes))
    suppressed = sum(duplicates_of(graph, source, read_s) for source in range(nodes))
    progress(1)
    return instant / nodes**2, suppressed / nodes**2, links


def rows(params: Params, results: Iterator[Any], samples: Samples | None) -> Iterator[Row]:
    """Summarise each number of nodes and degree, without suppression and with it."""
    repeats = params.repeats or REPEATS
    for nodes in params.nodes:
        for degree in degrees_of(params):
            *found, links = zip(*islice(results, repeats), strict=True)
            if samples is not None:
                seed = f"{params.seed_of(nodes, 0)}/{degree}"
                samples.keep_topology(nodes, seed, links[0], degree=degree)
            for suppressed, copies in zip((False, True), found, strict=True):
                yield {
                    "nodes": nodes,
                    "degree": degree,
                    "underlay": params.underlay_name,
                    "suppressed": suppressed,
                    "duplicates": round(float(np.mean(copies)), 6),
                    "duplicates_min": round(min(copies), 6),
                    "duplicates_max": round(max(copies), 6),
                    "expected": round(expected(nodes, degree), 6),
                    "reading_ms": 1000 * reading_s(params) if suppressed else 0.0,
                    "repeats": repeats,
                }


def table(rows: Sequence[Row]) -> Table:
    """Put Equation 4 beside both floods."""
    shown = Table(
        title=f"{EXPERIMENT.title}: copies beside the first, per node and message",
        caption=f"Suppressed: a node reads for {rows[-1]['reading_ms']:g} ms, and does not send to"
        " those\nwhose copies came meanwhile. Paper 001, Figure 5.4: slightly below d - 2.",
        box=box.SIMPLE,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("nodes", "degree", "Equation 4", "instant flood", "suppressed", "less by %"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for instant, suppressed in zip(rows[::2], rows[1::2], strict=True):
        less = 1 - suppressed["duplicates"] / instant["duplicates"] if instant["duplicates"] else 0
        shown.add_row(
            *(str(instant[key]) for key in ("nodes", "degree")),
            f"{instant['expected']:.4f}",
            *(f"{row['duplicates']:.4f}" for row in (instant, suppressed)),
            f"{100 * less:.1f}",
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw the copies over the degree (Figure 6), for the first number of nodes."""
    from matplotlib.figure import Figure

    mine = [row for row in rows if row["nodes"] == rows[0]["nodes"]]
    figure = Figure(figsize=(8, 5.5), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    degrees = [row["degree"] for row in mine[::2]]
    wanted = [row["expected"] for row in mine[::2]]
    axes.plot(degrees, wanted, "--", color="#8a8a8a", label="Equation 4: d - 2 + 2/N")
    for which, (label, color, marker) in enumerate(
        (("instant flood", "#1f5f8b", "o"), ("with suppression", "#b3471d", "s"))
    ):
        copies = [row["duplicates"] for row in mine[which::2]]
        look = {"fillstyle": "none", "markersize": 10} if which == 0 else {"markersize": 5}
        axes.plot(degrees, copies, marker, color=color, label=label, **look)
    axes.set(
        title=f"{EXPERIMENT.title}, {rows[0]['nodes']} nodes on {rows[0]['underlay']}",
        xlabel="degree",
        ylabel="copies beside the first, per node and message",
        xlim=(min(degrees) - 1, max(degrees) + 1),
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


EXPERIMENT = Experiment(
    name="redundancy",
    title="Redundancy of flooding",
    about="how many copies of a message come to a node (paper 000, Figure 6)",
    defaults=Params(nodes=(PAPER_NODES,), degree=16),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"underlay", "processing_ms"}),
    most_nodes=4096,
)
