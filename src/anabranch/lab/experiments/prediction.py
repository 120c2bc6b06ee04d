"""How well does a tracker predict delays? Paper 000, section V-C.6, Table 3, Figure 10.

Nodes report the round trips to their neighbours, and from these alone the tracker estimates how
long messages take in the mean (section IV-C). The estimate is compared with what the nodes measure:
simulated, on links whose delay varies from packet to packet, and live, between real processes whose
links are as long as the underlay's. The papers used pings of several hours before instead.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from anabranch.core.machine import Rtt
from anabranch.core.prediction import predict
from anabranch.core.tracker import Tracker
from anabranch.lab import emulator
from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.experiments.propagation import PAPER_REPEATS, mean_of_pairs
from anabranch.lab.flooding import flood
from anabranch.lab.kernels import Ints
from anabranch.lab.pictures import save
from anabranch.lab.topologies import grow, topology_of
from anabranch.lab.underlays import make_underlay
from anabranch.live.transports.connection import SAMPLES as ECHOES
from anabranch.overlays.random_regular import STATUS_EVERY_S
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Lane, PacketFaults, Underlay, arrivals

# By the number of nodes: estimated ms, measured ms, and the difference in percent.
PAPER_WEBSOCKET = {  # paper 000, Table 3
    32: (137, 146, 6.3),
    64: (150, 157, 4.3),
    128: (168, 172, 2.6),
    256: (172, 177, 2.7),
    512: (184, 189, 2.7),
    1024: (186, 190, 2.6),
    2048: (189, 194, 3.0),
}
PAPER_WEBRTC = {  # paper 001, Table 5.3
    32: (131, 137, 4.5),
    64: (159, 161, 1.3),
    128: (182, 184, 1.1),
    256: (211, 211, 0.0),
    512: (240, 241, 0.4),
    1024: (263, 266, 1.1),
    2048: (287, 288, 0.3),
}
PAPER_NOTE = """\
error: mean absolute percentage error (MAPE) over the repeats.
Papers, over all sizes: 3.5 % (WebSocket; 3.95 % in the thesis), 1.24 % (WebRTC).
sim: each packet's delay deviates by 5 % (normal, standard deviation), in order.
live: real processes and clocks, delays injected into their links."""

JITTER = PacketFaults(deviation_percent=5.0, in_order=True)
ECHO_JITTER = PacketFaults(deviation_percent=5.0)  # nothing waits behind an echo
LIVE_REPEATS = 3
LIVE_WORK = 600 * 600  # a live repeat takes as long as simulating so many deliveries
HERE, LIVE = "sim", "live"


class Compared(NamedTuple):
    """The mean delay of one topology, as a tracker estimates it and as nodes measured it."""

    estimated_ms: float
    measured_ms: float
    links: Ints


@dataclass(frozen=True)
class PredictionUnit(Unit):
    """One topology, simulated or live."""

    live: bool = False


def cut(params: Params) -> list[PredictionUnit]:
    """Cut by the number of nodes, the mode and the repeat."""
    return [
        PredictionUnit(params, nodes, repeat, LIVE_WORK if live else nodes * nodes, live)
        for nodes, live in series(params)
        for repeat in range(repeats_of(params, live))
    ]


def series(params: Params) -> list[tuple[int, bool]]:
    """Return which numbers of nodes are simulated, and which are live."""
    if params.mode == LIVE:
        for nodes in params.nodes:
            emulator.check_size(nodes)
    return [
        (nodes, live)
        for nodes in params.nodes
        for live in (False, True)
        if params.mode in ("both", LIVE if live else HERE)
        # Where both are wanted, what the machine does not carry is simulated only.
        and (not live or nodes <= emulator.most_nodes())
    ]


def repeats_of(params: Params, live: bool) -> int:
    """Return how often to repeat: by itself, the simulation as often as the paper did."""
    return params.repeats or (LIVE_REPEATS if live else PAPER_REPEATS)


def measure(unit: PredictionUnit, progress: Progress = unseen) -> Compared:
    """Return the mean delay of one topology, as estimated and as measured."""
    underlay = make_underlay(
        unit.params.underlay, unit.nodes, random.Random(f"{unit.seed}/underlay")
    )
    if not unit.live:
        return simulate(unit, underlay, progress)
    emulated = emulator.emulate(unit, underlay, progress)
    links = np.array([link for link in emulated.links if link[0] < link[1]], dtype=np.int64)
    measured_ms = 1000 * mean_of_pairs(emulated.delays_s)
    return Compared(1000 * emulated.estimated_s, measured_ms, links)


def simulate(unit: Unit, underlay: Underlay, progress: Progress = unseen) -> Compared:
    """Measure on links whose delay varies from packet to packet."""
    params, nodes, seed = unit.params, unit.nodes, unit.seed
    cluster = grow(underlay, nodes, params.degree, params.overlay, seed)
    cluster.sim.faults = JITTER
    measure_round_trips(cluster, random.Random(f"{seed}/echoes"))
    cluster.sim.run(cluster.sim.now + STATUS_EVERY_S + 1.0)  # by then everybody has reported
    estimated_ms = estimate_ms(cluster)
    topology = topology_of(cluster, underlay)
    measured = flood(cluster, topology, progress)
    return Compared(estimated_ms, 1000 * mean_of_pairs(measured.delays_s), topology.links())


def measure_round_trips(cluster: Cluster, rng: random.Random) -> None:
    """Let each node measure its links as a live one does: the median of some echoes."""
    for node in cluster.peers:
        for peer in cluster.neighbours(node, cluster.parts[0]):
            echoes_s = [echo_s(node.lanes[peer], rng) for _ in range(ECHOES)]
            cluster.sim.tell(node, Rtt(peer, median(echoes_s)))


def echo_s(lane: Lane, rng: random.Random) -> float:
    """Return how long an echo takes, there and back."""
    return sum(arrivals(way, 0, 0.0, ECHO_JITTER, rng)[0] for way in (lane, lane.back))


def estimate_ms(cluster: Cluster) -> float:
    """Return the mean delay that the tracker predicts by what it was told."""
    tracker = cluster.trackers[0].machine
    assert isinstance(tracker, Tracker)
    topology, rtts_us = tracker.topology(cluster.parts[0]), tracker.rtts_us(cluster.parts[0])
    found = predict(topology, rtts_us, sources=list(topology))
    assert found.mean_ms is not None
    return found.mean_ms


def rows(params: Params, results: Iterator[Compared], samples: Samples | None) -> Iterator[Row]:
    """Summarise the repeats of each number of nodes and mode."""
    for nodes, live in series(params):
        repeats, mode = repeats_of(params, live), LIVE if live else HERE
        found = list(islice(results, repeats))
        estimated_ms = np.array([each.estimated_ms for each in found])
        measured_ms = np.array([each.measured_ms for each in found])
        if samples is not None:
            samples.keep_topology(nodes, params.seed_of(nodes, 0), found[0].links, mode=mode)
        errors = np.abs(estimated_ms - measured_ms) / measured_ms
        yield {
            "nodes": nodes,
            "mode": mode,
            "estimated_ms": round(float(estimated_ms.mean()), 3),
            "measured_ms": round(float(measured_ms.mean()), 3),
            "mape": round(float(100 * errors.mean()), 4),
            "repeats": repeats,
        }


# --- What the reader sees -------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Table:
    """Put the papers' estimates, measurements and errors beside ours."""
    shown = Table(
        title=f"{EXPERIMENT.title}: estimated / measured mean delay in ms, and the error",
        caption=PAPER_NOTE,
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("nodes", "ours", "ms", "error", "paper,\nWebSocket", "", "paper,\nWebRTC", ""):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        of_papers: list[str] = []
        for figures in (PAPER_WEBSOCKET, PAPER_WEBRTC):
            estimated, measured, error = figures.get(row["nodes"], ("", "", ""))
            of_papers += [f"{estimated} / {measured}", f"{error} %"] if estimated else ["", ""]
        shown.add_row(
            str(row["nodes"]),
            row["mode"],
            f"{row['estimated_ms']:.1f} / {row['measured_ms']:.1f}",
            f"{row['mape']:.2f} %",
            *of_papers,
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw estimated and measured delays over the number of nodes, and the errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    left, right = figure.subplots(1, 2)
    lines: list[tuple[str, str, list[tuple[int, float, float, float]]]] = [
        ("ours, simulated", "#1f5f8b", _line(rows, HERE)),
        ("ours, live", "#3a9a5b", _line(rows, LIVE)),
        ("paper, WebRTC", "#b3471d", [(n, *figures) for n, figures in PAPER_WEBRTC.items()]),
        ("paper, WebSocket", "#8a8a8a", [(n, *figures) for n, figures in PAPER_WEBSOCKET.items()]),
    ]
    for label, color, line in lines:
        if line:
            nodes, estimated_ms, measured_ms, errors = zip(*line, strict=True)
            left.plot(nodes, measured_ms, "o-", color=color, markersize=5, label=label)
            left.plot(nodes, estimated_ms, "x--", color=color, markersize=6, alpha=0.7)
            right.plot(nodes, errors, "o-", color=color, markersize=5, label=label)
    left.set(
        title="Mean delay, measured (solid) and estimated (dashed)",
        ylabel="mean delay (ms)",
        ylim=(0, None),
    )
    right.set(title="Error of the estimate", ylabel="mean absolute error (%)", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_xlabel("number of nodes (logarithmic)")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(EXPERIMENT.title)
    save(figure, path)


def _line(rows: Sequence[Row], mode: str) -> list[tuple[int, float, float, float]]:
    return sorted(
        (row["nodes"], row["estimated_ms"], row["measured_ms"], row["mape"])
        for row in rows
        if row["mode"] == mode
    )


EXPERIMENT = Experiment(
    name="prediction",
    title="Prediction of delays by the tracker",
    about="how well reported round trips predict delays (paper 000, Table 3, Figure 10)",
    defaults=Params(nodes=(16, 32, 64, 128, 256)),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"overlay", "underlay", "mode"}),
    most_nodes=2048,
)
