"""How long does a message take to everybody? Paper 000, section V-C, Figures 7 and 8, Table 2.

Nodes in sixteen Amazon regions join one stream with the help of a tracker, and each publishes
one message. The paper's own system had two transports: over WebSocket its tracker favoured near
nodes by accident (paper 001, sections 4.3 and 5.4.4), over WebRTC its overlay was as random as
ours, so the WebRTC figures (paper 001, Table 5.2) are the ones to compare with.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.flooding import Flood, describe, flood_on_arrays, recording
from anabranch.lab.flooding import flood as flood_by_machines
from anabranch.lab.legacy_status import grow_legacy
from anabranch.lab.pictures import save
from anabranch.lab.topologies import grow, topology_of
from anabranch.lab.underlays import make_underlay, mean_delay_s
from anabranch.sim.network import Underlay

# Mean delay in ms by the number of nodes: the least, the mean and the greatest of the repeats.
PAPER_WEBRTC = {
    32: (120, 137, 150),
    64: (152, 161, 177),
    128: (174, 184, 195),
    256: (199, 211, 227),
    512: (226, 241, 259),
    1024: (256, 266, 280),
    2048: (282, 288, 296),
}
PAPER_WEBSOCKET = {
    32: (127, 146, 160),
    64: (147, 157, 172),
    128: (151, 172, 186),
    256: (160, 177, 197),
    512: (170, 189, 211),
    1024: (175, 190, 210),
    2048: (184, 194, 202),
}
PAPER_NOTE = """\
RDP, relative delay penalty: mean delay over that of sending straight to each.
Papers: RDP 4.19 (WebRTC), 2.8 (WebSocket) at 2048; duplicates 1.95 to 2.05."""

LEGACY_NOTE = """
Legacy status: the pace of the joins, which the paper does not tell, was chosen
so that 2048 nodes come near to its WebSocket; other sizes were not fitted."""

PAPER_REPEATS = 9
MACHINES_UP_TO = 128  # nodes; above, the kernels take over from the machines


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes and the repeat."""
    return [
        Unit(params, nodes, repeat, nodes * nodes)
        for nodes in params.nodes
        for repeat in range(repeats_of(params, nodes))
    ]


def measure(unit: Unit, progress: Progress = unseen) -> tuple[Flood, float]:
    """Return what a topology's flood took, and the relative delay penalty.

    A message that is sent straight crosses one hop, whose processing counts as that of any other:
    where everybody is everybody's neighbour, the penalty is 1.
    """
    params, nodes = unit.params, unit.nodes
    underlay = make_underlay(params.underlay, nodes, random.Random(f"{unit.seed}/underlay"))
    flood = measure_legacy if params.legacy_status else measure_cluster
    measured = flood(unit, underlay, progress)
    straight_s = mean_delay_s(underlay, nodes) + params.processing_s
    return measured, mean_of_pairs(measured.delays_s) / straight_s


def measure_legacy(unit: Unit, underlay: Underlay, progress: Progress) -> Flood:
    """Flood over what the naive status protocol leaves behind."""
    params = unit.params
    topology = grow_legacy(underlay, unit.nodes, params.degree, unit.seed, params.processing_s)
    measured = flood_on_arrays(topology)
    progress(1)
    return measured


def measure_cluster(unit: Unit, underlay: Underlay, progress: Progress) -> Flood:
    """Grow an overlay of machines, and flood over it: by themselves, or on arrays if many."""
    params = unit.params
    timing = params.processing_s, params.learning
    cluster = grow(underlay, unit.nodes, params.degree, params.overlay, unit.seed, *timing)
    topology = topology_of(cluster, underlay, params.processing_s)
    # An overlay that goes on improving would move under a flood: it is taken as it stands.
    if params.traces is None and (unit.nodes > MACHINES_UP_TO or params.learning):
        measured = flood_on_arrays(topology, cluster.sim.now)
        progress(1)
        return measured
    with recording(trace_path(unit)) as recorder:
        if recorder is not None:
            describe(cluster, underlay, recorder)
        return flood_by_machines(cluster, topology, progress)


def trace_path(unit: Unit) -> Path | None:
    """Return where the trace of a repeat belongs, if one is wanted."""
    if unit.params.traces is None:
        return None
    return Path(unit.params.traces) / f"{EXPERIMENT.name}-n{unit.nodes}-r{unit.repeat}.parquet"


def rows(
    params: Params, results: Iterator[tuple[Flood, float]], samples: Samples | None
) -> Iterator[Row]:
    """Summarise each number of nodes; the samples are the delays in ms, ascending."""
    for nodes in params.nodes:
        measured = islice(results, repeats_of(params, nodes))
        floods, penalties = zip(*measured, strict=True)
        delays_ms = np.concatenate([pairs_of(flood.delays_s) for flood in floods])
        delays_ms *= 1000
        delays_ms.sort()
        if samples is not None:
            samples[nodes] = delays_ms
            samples.keep_topology(nodes, params.seed_of(nodes, 0), floods[0].links)
        names = {"nodes": nodes, "overlay": params.overlay, "underlay": params.underlay_name}
        names |= {"legacy_status": params.legacy_status, "learning_s": params.learning}
        names |= {"processing_ms": 1000 * params.processing_s}
        yield names | figures_of(floods, penalties, delays_ms)


def repeats_of(params: Params, nodes: int) -> int:
    """Return how often to repeat: by itself, nine times as the paper did, and small ones more.

    The means of 32-node topologies spread by a tenth, so nine of them would tell little; and
    repeating them costs next to nothing.
    """
    return params.repeats or max(PAPER_REPEATS, PAPER_REPEATS * 512 // nodes)


def figures_of(
    floods: Sequence[Flood], penalties: Sequence[float], delays_ms: NDArray[np.float64]
) -> Row:
    """Summarise the repeats; medians and the like are of all their deliveries together."""
    means_ms = [1000 * mean_of_pairs(flood.delays_s) for flood in floods]
    hops = np.concatenate([pairs_of(flood.hops) for flood in floods])
    estimates_ms = [1000 * flood.estimated_s for flood in floods]
    errors = np.abs(np.subtract(estimates_ms, means_ms)) / means_ms
    return {
        "mean_ms_min": round(min(means_ms), 3),
        "mean_ms": round(float(np.mean(means_ms)), 3),
        "mean_ms_max": round(max(means_ms), 3),
        "p50_ms": round(float(np.quantile(delays_ms, 0.5)), 3),
        "p99_ms": round(float(np.quantile(delays_ms, 0.99)), 3),
        "max_ms": round(float(delays_ms[-1]), 3),
        "rdp": round(float(np.mean(penalties)), 4),
        "duplicates": round(float(np.mean([flood.duplicates for flood in floods])), 4),
        "hops_mean": round(float(hops.mean()), 4),
        "hops_max": int(hops.max()),
        "estimated_ms": round(float(np.mean(estimates_ms)), 3),
        "error_percent": round(float(100 * errors.mean()), 4),
        "repeats": len(floods),
    }


def pairs_of(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return what lies off the diagonal."""
    return matrix[~np.eye(len(matrix), dtype=bool)]


def mean_of_pairs(matrix: NDArray[np.float64]) -> float:
    """Return the mean off the diagonal."""
    return float(pairs_of(matrix).mean())


# --- What the reader sees -------------------------------------------------------------------


def spread(least: float, mean: float, greatest: float) -> str:
    """Write a mean with its range."""
    return f"{mean:.0f} ({least:.0f}-{greatest:.0f})"


def table(rows: Sequence[Row]) -> Table:
    """Put the paper's means, over both its transports, beside ours."""
    shown = Table(
        title=f"{EXPERIMENT.title}: mean delay in ms (least-greatest of the repeats)",
        caption=PAPER_NOTE + (LEGACY_NOTE if rows[0]["legacy_status"] else ""),
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    headings = ("nodes", "ours", "paper,\nWebRTC", "paper,\nWebSocket", "p99\nms", "RDP")
    for heading in (*headings, "dupli-\ncates", "hops"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        of_paper = (figures.get(row["nodes"]) for figures in (PAPER_WEBRTC, PAPER_WEBSOCKET))
        shown.add_row(
            str(row["nodes"]),
            spread(row["mean_ms_min"], row["mean_ms"], row["mean_ms_max"]),
            *(spread(*figures) if figures else "" for figures in of_paper),
            f"{row['p99_ms']:.0f}",
            f"{row['rdp']:.2f}",
            f"{row['duplicates']:.2f}",
            f"{row['hops_mean']:.1f}",
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw the distribution of the delays for each size, and their means over the sizes."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: row["nodes"])
    sizes = [row["nodes"] for row in rows]
    figure = Figure(figsize=(12, 5), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    left, right = figure.subplots(1, 2)
    for shade, nodes in zip(np.linspace(0.85, 0.1, len(sizes)), sizes, strict=True):
        share = np.linspace(0, 1, 1001)
        delays_ms = np.quantile(samples[nodes], share)
        left.plot(delays_ms, share, color=colormaps["viridis"](shade), label=f"{nodes} nodes")
    left.set(
        title="Distribution of the delay",
        xlabel="delay from publisher to subscriber (ms)",
        ylabel="share of the deliveries",
        xlim=(0, None),
        ylim=(0, 1.02),
    )
    for (label, figures), color in zip(
        (("paper, WebRTC", PAPER_WEBRTC), ("paper, WebSocket", PAPER_WEBSOCKET)),
        ("#b3471d", "#8a8a8a"),
        strict=True,
    ):
        means_ms = [mean for _, mean, _ in figures.values()]
        right.plot(list(figures), means_ms, "s--", color=color, markersize=5, label=label)
    least, mean, greatest = (
        [row[key] for row in rows] for key in ("mean_ms_min", "mean_ms", "mean_ms_max")
    )
    right.plot(sizes, mean, "o-", color="#1f5f8b", label="ours")
    right.vlines(sizes, least, greatest, color="#1f5f8b", alpha=0.3)
    right.fill_between(
        sizes,
        least,
        greatest,
        color="#1f5f8b",
        alpha=0.2,
        linewidth=0,
        label="ours, least to greatest repeat",
    )
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:.0f}")
    right.set(
        title="Mean delay",
        xlabel="number of nodes (logarithmic)",
        ylabel="mean delay (ms)",
        ylim=(0, None),
    )
    for axes in (left, right):
        axes.legend(frameon=False, loc="lower right")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    how = "legacy status protocol" if rows[0]["legacy_status"] else rows[0]["overlay"]
    figure.suptitle(f"{EXPERIMENT.title} ({how} on {rows[0]['underlay']})")
    save(figure, path)


EXPERIMENT = Experiment(
    name="propagation",
    title="Propagation of messages",
    about="how long a message takes to everybody (paper 000, Figures 7 and 8, Table 2)",
    defaults=Params(nodes=(32, 64, 128, 256, 512)),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset(
        {"overlay", "underlay", "traces", "processing_ms", "learning_s", "legacy_status"}
    ),
    most_nodes=4096,  # n messages to n nodes: four times the time and space at twice the nodes
)
