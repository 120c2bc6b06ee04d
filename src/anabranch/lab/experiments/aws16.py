"""How far apart are the sixteen regions? Paper 000, Table 1, as paper 001, Table 5.1 prints it.

Nodes are placed as in the paper, equally many in each region, and a row is the mean delay from
the nodes of one region to those of another, as the underlay of all other experiments has it.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.pictures import save
from anabranch.lab.underlays import AWS16, REGIONS, mean_delay_s

PAPER_NODES = 1024
PAPER_MEAN_MS = 68.64  # over the printed table, diagonal and all: paper 001, section 5.4.5


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes."""
    return [Unit(params, nodes, work=nodes * nodes) for nodes in params.nodes]


def measure(unit: Unit, progress: Progress = unseen) -> NDArray[np.float64]:
    """Return the mean delay in ms from every region to every region, nan where there is none."""
    underlay = AWS16(unit.nodes)
    places: list[list[int]] = [[] for _ in REGIONS]
    for place in range(unit.nodes):
        places[underlay.region(place)].append(place)
    matrix = np.full((len(REGIONS), len(REGIONS)), np.nan)
    for a, here in enumerate(places):
        for b, there in enumerate(places):
            delays_s = [underlay.delay_s(i, j) for i in here for j in there if i != j]
            if delays_s:  # or else fewer nodes than regions, or one in the region
                matrix[a, b] = 1000 * math.fsum(delays_s) / len(delays_s)
        progress((a + 1) / len(places))
    return matrix


def rows(
    params: Params, results: Iterator[NDArray[np.float64]], samples: Samples | None
) -> Iterator[Row]:
    """Yield the delay from every region to every region; the samples are the matrix."""
    for nodes, matrix in zip(params.nodes, results, strict=True):
        if samples is not None:
            samples[nodes] = matrix
        for (a, b), delay_ms in np.ndenumerate(matrix):
            if not np.isnan(delay_ms):
                names = {"nodes": nodes, "from": REGIONS[a], "to": REGIONS[b]}
                yield names | {"delay_ms": round(float(delay_ms), 3)}


def table(rows: Sequence[Row]) -> Table:
    """Show, for each region, how far the others are; and the mean beside the paper's."""
    nodes = rows[0]["nodes"]
    mean_ms = sum(row["delay_ms"] for row in rows) / len(rows)
    pairs_ms = 1000 * mean_delay_s(AWS16(nodes), nodes)
    shown = Table(
        title=EXPERIMENT.title,
        caption=f"Mean of the regions' table: ours {mean_ms:.2f} ms, paper {PAPER_MEAN_MS} ms.\n"
        f"Mean over all pairs of {nodes} nodes: {pairs_ms:.2f} ms.",
        box=box.SIMPLE,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("from", "nearest", "ms", "mean ms", "farthest", "ms"):
        shown.add_column(heading, justify="right" if "ms" in heading else "left", no_wrap=True)
    for region in REGIONS:
        others = sorted(
            (row["delay_ms"], row["to"])
            for row in rows
            if row["from"] == region != row["to"] and row["nodes"] == nodes
        )
        if others:
            mean = sum(delay_ms for delay_ms, _ in others) / len(others)
            (near_ms, near), (far_ms, far) = others[0], others[-1]
            shown.add_row(region, near, f"{near_ms:.1f}", f"{mean:.1f}", far, f"{far_ms:.1f}")
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw the table as a map of colours, with its figures."""
    from matplotlib.figure import Figure

    matrix = next(iter(samples.values()))
    figure = Figure(figsize=(11, 8.5), dpi=130)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    image = axes.imshow(matrix, cmap="viridis_r")
    axes.set_xticks(range(len(REGIONS)), REGIONS, rotation=45, ha="right")
    axes.set_yticks(range(len(REGIONS)), REGIONS)
    middle = np.nanmax(matrix) / 2
    for (a, b), delay_ms in np.ndenumerate(matrix):
        color = "white" if delay_ms > middle else "black"
        axes.text(b, a, f"{delay_ms:.1f}", ha="center", va="center", fontsize=7.5, color=color)
    axes.set(title=EXPERIMENT.title, xlabel="to", ylabel="from")
    figure.colorbar(image, label="one-way delay (ms)", shrink=0.8)
    save(figure, path)


EXPERIMENT = Experiment(
    name="aws16",
    title="One-way delays between sixteen Amazon regions",
    about="the underlay of the Streamr experiments (paper 000, Table 1)",
    defaults=Params(nodes=(PAPER_NODES,)),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    most_nodes=4096,
)
