"""Are the tracker's topologies random? Paper 000, section V-B.1, Figures 2 and 3.

Nodes 0 to n-1 join in this order, many times over, and we count how often each pair ends up as
neighbours. In a random d-regular graph every pair is as likely as any other, d/(n-1), so the
counts are binomial: their variance over their mean is 1-p. Paper 001, section 5.1.1, found the
first few joiners to be linked to each other up to three times as often.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.pictures import save
from anabranch.overlays.regular_graph import RegularGraph

EARLY = 10  # how many joiners are the first few

PAPER_REPEATS = 1000
PAPER_PROBABILITY = 0.0040040  # 1000 nodes of degree 4, 1000 repeats
PAPER_EARLY_BIAS = "up to 3"


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes and the repeat."""
    repeats = range(params.repeats or PAPER_REPEATS)
    return [Unit(params, nodes, repeat, nodes) for nodes in params.nodes for repeat in repeats]


def measure(unit: Unit, progress: Progress = unseen) -> NDArray[np.int64]:
    """Return the links of one topology."""
    links = links_of(unit.nodes, unit.params.degree, unit.seed)
    progress(1)
    return links


def rows(
    params: Params, results: Iterator[NDArray[np.int64]], samples: Samples | None
) -> Iterator[Row]:
    """Count the pairs for each number of nodes; the samples are the matrix of counts."""
    repeats = params.repeats or PAPER_REPEATS
    for nodes in params.nodes:
        counts = np.zeros(nodes * nodes, dtype=np.int64)
        for repeat, links in enumerate(islice(results, repeats)):
            counts[links] += 1
            if samples is not None and not repeat:
                ends = np.stack(np.divmod(links, nodes), axis=1)
                samples.keep_topology(nodes, params.seed_of(nodes, repeat), ends)
        matrix = counts.reshape(nodes, nodes)
        if samples is not None:
            samples[nodes] = (matrix + matrix.T).astype(np.float64)
        yield row_of(matrix, params.degree, repeats)


def links_of(nodes: int, degree: int, seed: str) -> NDArray[np.int64]:
    """Build one topology; return each link i-j, i < j, as i * nodes + j."""
    graph = RegularGraph[int](degree, random.Random(seed))
    for node in range(nodes):
        graph.join(node)
    ends = np.sort(np.array(graph.links(), dtype=np.int64), axis=1)
    return np.asarray(ends[:, 0] * nodes + ends[:, 1])


def row_of(matrix: NDArray[np.int64], degree: int, repeats: int) -> Row:
    """Summarise the counts above the diagonal."""
    nodes = len(matrix)
    pairs = matrix[np.triu_indices(nodes, k=1)]
    early = matrix[:EARLY, :EARLY][np.triu_indices(min(EARLY, nodes), k=1)]
    # An odd sum of degrees leaves one slot unused, and fewer than d others are a full house.
    expected = (nodes * min(degree, nodes - 1) // 2) / len(pairs)
    return {
        "nodes": nodes,
        "degree": degree,
        "repeats": repeats,
        "pair_probability": round(float(pairs.mean()) / repeats, 9),
        "expected_probability": round(expected, 9),
        "dispersion": round(float(pairs.var() / pairs.mean()), 6),
        "binomial_dispersion": round(1 - expected, 6),
        "early_bias": round(float(early.mean() / pairs.mean()), 6),
    }


def table(rows: Sequence[Row]) -> Table:
    """Put the paper's figures beside ours."""
    shown = Table(
        title=EXPERIMENT.title, box=box.SIMPLE, padding=(0, 1, 0, 0), title_justify="left"
    )
    for heading in ("nodes", "degree", "repeats", "", "ours", "expected", "paper"):
        shown.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for row in rows:
        same = (row["nodes"], row["degree"]) == (1000, 4)
        shown.add_row(
            *(str(row[key]) for key in ("nodes", "degree", "repeats")),
            "pair probability",
            f"{row['pair_probability']:.7f}",
            f"{row['expected_probability']:.7f}",
            f"{PAPER_PROBABILITY:.7f}" if same else "",
        )
        shown.add_row(
            *("", "", "", "variance / mean"),
            f"{row['dispersion']:.4f}",
            f"{row['binomial_dispersion']:.4f}",
        )
        shown.add_row(
            *("", "", "", f"bias of first {EARLY}"),
            f"{row['early_bias']:.2f}",
            "1.00",
            PAPER_EARLY_BIAS if same else "",
            end_section=True,
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw the matrix of connections and the histogram of the pairs' probabilities."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from scipy.stats import binom

    figure = Figure(figsize=(12, 5.4 * len(rows)), dpi=220)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    for (left, right), row in zip(figure.subplots(len(rows), 2, squeeze=False), rows, strict=True):
        nodes, repeats, mean = row["nodes"], row["repeats"], row["pair_probability"]
        matrix = samples[nodes]
        pairs = matrix[np.triu_indices(nodes, k=1)].astype(np.int64)
        darkest = max(1, int(np.quantile(pairs, 0.9999)))
        image = left.imshow(matrix, cmap="Greys", vmin=0, vmax=darkest, interpolation="antialiased")
        figure.colorbar(image, ax=left, shrink=0.85, label=f"times linked, of {repeats}")
        left.set(
            title=f"Links between {nodes} nodes over {repeats} topologies",
            xlabel="node, by order of joining",
            ylabel="node, by order of joining",
        )
        times = np.arange(pairs.max() + 2)
        right.bar(
            times / repeats,
            np.bincount(pairs, minlength=len(times)),
            width=0.85 / repeats,
            color="#9bbbd4",
            label="pairs of nodes",
        )
        right.plot(
            times / repeats,
            binom.pmf(times, repeats, row["expected_probability"]) * len(pairs),
            "o-",
            color="#b3471d",
            markersize=4,
            linewidth=1,
            label="expected of a binomial",
        )
        right.axvline(mean, color="black", linestyle="--", label=f"mean, {mean:.7f}")
        right.set(
            title=f"How probable a link between two nodes is (degree {row['degree']})",
            xlabel="probability of the link",
            ylabel="number of pairs",
        )
        right.xaxis.set_major_locator(MaxNLocator(8))
        right.yaxis.set_major_formatter("{x:,.0f}")
        right.legend(frameon=False)
        right.spines[["top", "right"]].set_visible(False)
    save(figure, path)


EXPERIMENT = Experiment(
    name="randomness",
    title="Randomness of the tracker's topologies",
    about="how evenly the tracker links pairs of nodes (paper 000, Figures 2 and 3)",
    defaults=Params(nodes=(1000,), repeats=PAPER_REPEATS),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    most_nodes=10_000,  # there is one counter for every pair
)
