"""How long does a message take to everybody? Paper 000, section V-C, Figures 7 and 8, Table 2.

Nodes in sixteen Amazon regions join one stream with the help of a tracker, and each publishes
one message. The paper's own system had two transports: over WebSocket its tracker favoured near
nodes by accident (paper 001, sections 4.3 and 5.4.4), over WebRTC its overlay was as random as
ours, so the WebRTC figures (paper 001, Table 5.2) are the ones to compare with.
"""

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from anabranch.core.ids import FrameHead, NodeId
from anabranch.core.prediction import predict
from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.underlays import UNDERLAYS, mean_delay_s
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Observer, SimNode, Underlay
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

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

PAPER_REPEATS = 9
CONTENT = bytes(64)  # the paper's messages have less than 100 bytes
SPACING_S = 0.01  # between two messages; lanes have no queues, so they cannot delay each other
LOOK_EVERY_S = 1.0
PATIENCE_S = 60.0  # simulated, for the overlay to settle and for the last delivery


@dataclass(frozen=True)
class Flood:
    """What one repeat measured: row publisher, column subscriber, the diagonal left out."""

    delays_s: NDArray[np.float64]
    hops: NDArray[np.uint8]
    duplicates: float  # frames that came to a node and were not the first, per message
    estimated_s: float  # the mean delay as a tracker would predict it (section V-C.6)


class Deliveries(Observer):
    """Notes delay and hops of every delivery but the publisher's own."""

    def __init__(self, peers: Sequence[SimNode]) -> None:
        self._places: dict[NodeId, int] = {node.id: node.place for node in peers}
        self.delays_s = np.full((len(peers), len(peers)), np.nan)
        self.hops = np.zeros((len(peers), len(peers)), dtype=np.uint8)  # as in a route
        self.count = 0

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        """A node handed a frame to its application."""
        if node.id != head.publisher:
            pair = self._places[head.publisher], node.place
            self.delays_s[pair] = round(delay_s, 6)  # the clock's steps are not much finer
            self.hops[pair] = hops
            self.count += 1


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes and the repeat."""
    return [
        Unit(params, nodes, repeat, nodes * nodes)
        for nodes in params.nodes
        for repeat in range(repeats_of(params, nodes))
    ]


def measure(unit: Unit, progress: Progress = unseen) -> tuple[Flood, float]:
    """Return what a topology's flood took, and the relative delay penalty."""
    params, nodes, seed = unit.params, unit.nodes, unit.seed
    underlay = UNDERLAYS[params.underlay](nodes, random.Random(f"{seed}/underlay"))
    cluster = grow(underlay, nodes, params.degree, params.overlay, seed)
    with record(params, nodes, unit.repeat) as recorder:
        if recorder is not None:
            describe(cluster, underlay, recorder)
        measured = flood(cluster, progress)
    return measured, mean_of_pairs(measured.delays_s) / mean_delay_s(underlay, nodes)


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
        names = {"nodes": nodes, "overlay": params.overlay, "underlay": params.underlay}
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


# --- One repeat -----------------------------------------------------------------------------


def grow(underlay: Underlay, nodes: int, degree: int, overlay: str, seed: str) -> Cluster:
    """Let all nodes subscribe at once; return when the overlay has settled."""
    sim = Simulator(underlay, seed)
    cluster = Cluster(sim, seed, nodes, overlay=overlay, degree=degree)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    give_up_at = sim.now + PATIENCE_S
    links = links_of(cluster)
    while sim.now < give_up_at:
        sim.run(sim.now + LOOK_EVERY_S)
        # Neighbours on their way out still count until their successors stand, so the right
        # number of them may be a coincidence; that nothing has moved since the last look is not.
        before, links = links, links_of(cluster)
        if links == before and is_regular(links, degree):
            return cluster
    raise RuntimeError(f"{nodes} nodes have not settled after {PATIENCE_S:.0f} simulated seconds")


def links_of(cluster: Cluster) -> dict[NodeId, tuple[NodeId, ...]]:
    """Return everybody's neighbours."""
    return {node.id: cluster.neighbours(node, cluster.parts[0]) for node in cluster.peers}


def is_regular(links: dict[NodeId, tuple[NodeId, ...]], degree: int) -> bool:
    """Tell whether every link is known to both ends and no slot is unused that could be used."""
    full = min(degree, len(links) - 1)
    unused = sum(full - len(near) for near in links.values())
    mutual = all(node in links[peer] for node, near in links.items() for peer in near)
    return mutual and unused == len(links) * full % 2


def flood(cluster: Cluster, progress: Progress = unseen) -> Flood:
    """Let each node publish one message; return when everybody has them all."""
    sim, nodes = cluster.sim, len(cluster.peers)
    wanted = nodes * (nodes - 1)
    links, sent = links_of(cluster), sim.sent_frames
    seen = sim.observer = Deliveries(cluster.peers)
    for number, node in enumerate(cluster.peers, 1):
        cluster.publish(node, cluster.parts[0], [CONTENT])
        sim.run(sim.now + SPACING_S)
        progress(number / nodes)
    give_up_at = sim.now + PATIENCE_S
    while seen.count < wanted and sim.now < give_up_at:
        sim.run(sim.now + LOOK_EVERY_S)
    sim.run(sim.now + LOOK_EVERY_S)
    sim.observer = None
    assert seen.count == wanted, f"{seen.count} deliveries, not {wanted}"
    assert links_of(cluster) == links, "the overlay changed while it was measured"
    duplicates = (sim.sent_frames - sent - wanted) / (nodes * nodes)
    return Flood(seen.delays_s, seen.hops, duplicates, estimate_s(cluster))


def estimate_s(cluster: Cluster) -> float:
    """Return what a tracker predicts for the mean delay between two nodes."""
    links = links_of(cluster)
    rtts_us = {pair: round(1e6 * rtt_s) for pair, rtt_s in rtts_of(cluster).items()}
    mean_ms = predict(links, rtts_us, sources=list(links)).mean_ms
    assert mean_ms is not None
    return mean_ms / 1000


def rtts_of(cluster: Cluster) -> dict[tuple[NodeId, NodeId], float]:
    """Return the round trips between neighbours, as both ends measured them."""
    found = {}
    for node in cluster.peers:
        for peer in cluster.neighbours(node, cluster.parts[0]):
            lane = node.lanes[peer]
            found[node.id, peer] = lane.delay_s + lane.back.delay_s
    return found


# --- Traces ---------------------------------------------------------------------------------


@contextmanager
def record(params: Params, nodes: int, repeat: int) -> Iterator[Recorder | None]:
    """Give a recorder for one repeat, if traces are wanted; the file appears when it is whole."""
    if params.traces is None:
        yield None
        return
    path = Path(params.traces) / f"{EXPERIMENT.name}-n{nodes}-r{repeat}.parquet"
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with TraceWriter(unfinished) as writer:
            yield Recorder(writer.write)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def describe(cluster: Cluster, underlay: Underlay, recorder: Recorder) -> None:
    """Record what is there before the first message, and from now on all that happens."""
    sim, part = cluster.sim, cluster.parts[0]
    recorder.name_part(part)
    for node in cluster.peers:
        recorder.subscribed(START_AT, node.id, part, True)  # as `grow` let them
    for (node_id, peer_id), rtt_s in rtts_of(cluster).items():
        recorder.rtt(sim.now, node_id, peer_id, rtt_s)
    for node in cluster.peers:
        for peer in cluster.peers:
            if peer is not node:
                direct_s = underlay.delay_s(node.place, peer.place)
                recorder.unicast(sim.now, node.id, peer.id, direct_s)
    sim.record(recorder)
    cluster.snapshot()


# --- What the reader sees -------------------------------------------------------------------


def spread(least: float, mean: float, greatest: float) -> str:
    """Write a mean with its range."""
    return f"{mean:.0f} ({least:.0f}-{greatest:.0f})"


def table(rows: Sequence[Row]) -> Table:
    """Put the paper's means, over both its transports, beside ours."""
    shown = Table(
        title=f"{EXPERIMENT.title}: mean delay in ms (least-greatest of the repeats)",
        caption=PAPER_NOTE,
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
    figure.suptitle(f"{EXPERIMENT.title} ({rows[0]['overlay']} on {rows[0]['underlay']})")
    figure.savefig(path)


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
    options=frozenset({"overlay", "underlay", "traces"}),
    most_nodes=4096,  # n messages to n nodes: four times the time and space at twice the nodes
)
