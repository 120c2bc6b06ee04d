"""What does an overlay withstand? Paper 000's requirements 7, 9 and 10, for each tracked overlay.

A trial grows a network four times, and gives it time to learn. In the first, a fifth of the
nodes is removed at once: how many of the rest are in one piece before any repair, and are all of
them ten seconds later? In the others, a fifth lies about delays and passes nothing on: how many of
the honest nodes' links do they hold, and how many honest nodes do they cut off from the others?
They claim to be near to everybody; or to everybody but one another, so as not to waste links; or
that they cannot reach one another, which helps them in any tracked overlay.
"""

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from anabranch.core.ids import NodeId
from anabranch.lab.experiment import (
    LEARNING_S,
    Experiment,
    Params,
    Progress,
    Row,
    Samples,
    Unit,
    unseen,
)
from anabranch.lab.kernels import Ints
from anabranch.lab.pictures import save
from anabranch.lab.topologies import Neighbours, grow, links_of, topology_of
from anabranch.lab.underlays import make_underlay
from anabranch.overlays import TOPOLOGIES
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Underlay

SHARE = 0.2  # of the nodes are removed, or collude; no more than that
DRAWS = 20  # of nodes to remove, for each topology
REPAIR_S = 10.0
TRIALS = 50
COLLUSIONS = {  # how colluders lie, and under which keys stand what they hold and whom they cut off
    "flattering": ("colluders_hold", "cut_off"),
    "clannish": ("clannish_hold", "clannish_cut_off"),
    "aloof": ("aloof_hold", "aloof_cut_off"),
}
HONEST: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class OverlayUnit(Unit):
    """A trial with one of the overlays; the same repeat has the same nodes with each."""

    overlay: str = ""


class Trial(NamedTuple):
    """What came of a trial, of the nodes that are left or honest."""

    pieces: list[float]  # of each draw: the share of the rest that is in the largest piece
    repaired: bool  # whether all are one piece again in time
    held: list[float]  # by each collusion: share of honest nodes' links that end at colluders
    cut_off: list[int]  # and honest nodes that are not in the largest piece of them
    links: Ints  # before anything is removed


def cut(params: Params) -> list[OverlayUnit]:
    """Cut by the number of nodes, the overlay and the trial."""
    return [
        OverlayUnit(params, nodes, trial, nodes, overlay)
        for nodes in params.nodes
        for overlay in TOPOLOGIES
        for trial in range(params.repeats or TRIALS)
    ]


def measure(unit: OverlayUnit, progress: Progress = unseen) -> Trial:
    """Let a network be hurt, and another one be lied to."""
    rng = random.Random(f"{unit.seed}/harm")
    some = max(1, int(SHARE * unit.nodes))
    liars = rng.sample(range(unit.nodes), some)
    trial = remove(unit, some, rng)
    for lie in COLLUSIONS:
        progress((1 + len(trial.held)) / (1 + len(COLLUSIONS)))
        held, cut_off = collude(unit, dict.fromkeys(liars, lie))
        trial.held.append(held)
        trial.cut_off.append(cut_off)
    return trial


def remove(unit: OverlayUnit, some: int, rng: random.Random) -> Trial:
    """Remove some nodes, in thought many times, and then once for all."""
    cluster, underlay = grow_unit(unit)
    topology = topology_of(cluster, underlay).links()
    links, names = links_of(cluster), [node.id for node in cluster.peers]
    pieces = []
    for _ in range(DRAWS):
        left = set(names) - set(rng.sample(names, some))
        pieces.append(largest(links, left) / len(left))
    for node in rng.sample(cluster.peers, some):
        cluster.sim.crash(node)
    cluster.sim.run(cluster.sim.now + REPAIR_S)
    alive = {node.id for node in cluster.peers if node.alive}
    now = {node.id: cluster.neighbours(node, cluster.parts[0]) for node in cluster.peers}
    return Trial(pieces, largest(now, alive) == len(alive), [], [], topology)


def collude(unit: OverlayUnit, disguises: Mapping[int, str]) -> tuple[float, int]:
    """Return what share of honest nodes' links liars hold, and how many nodes they cut off."""
    cluster, _ = grow_unit(unit, disguises)
    links, honest = links_of(cluster), {node.id for node in cluster.honest}
    ends = [peer for node in honest for peer in links[node]]
    held = sum(peer not in honest for peer in ends) / len(ends)
    return held, len(honest) - largest(links, honest)


def grow_unit(unit: OverlayUnit, disguises: Mapping[int, str] = HONEST) -> tuple[Cluster, Underlay]:
    """Grow the network of a unit; one that learns is given the time for it."""
    params, seed = replace(unit.params, overlay=unit.overlay), unit.seed
    underlay = make_underlay(params.underlay, unit.nodes, random.Random(f"{seed}/underlay"))
    timing = params.processing_s, params.learning if params.overlay in LEARNING_S else 0.0
    options = params.degree, params.overlay, seed, *timing
    return grow(underlay, unit.nodes, *options, disguises), underlay


def largest(links: Neighbours, among: Set[NodeId]) -> int:
    """Return how many of some nodes are in the largest piece that they form by themselves."""
    known: set[NodeId] = set()
    most = 0
    for root in sorted(among):
        if root in known:
            continue
        queue, before = [root], len(known)
        known.add(root)
        for node in queue:
            for peer in links[node]:
                if peer in among and peer not in known and node in links[peer]:
                    known.add(peer)
                    queue.append(peer)
        most = max(most, len(known) - before)
    return most


def rows(params: Params, results: Iterator[Trial], samples: Samples | None) -> Iterator[Row]:
    """Summarise each number of nodes and overlay."""
    trials = params.repeats or TRIALS
    for nodes in params.nodes:
        for overlay in TOPOLOGIES:
            found = list(islice(results, trials))
            pieces = np.array([piece for trial in found for piece in trial.pieces])
            held = np.array([trial.held for trial in found])  # trial, collusion
            cut_off = np.array([trial.cut_off for trial in found])
            if samples is not None:
                seed = params.seed_of(nodes, 0)
                samples.keep_topology(nodes, seed, found[0].links, overlay=overlay)
            yield {
                "nodes": nodes,
                "overlay": overlay,
                "underlay": params.underlay_name,
                "removed_percent": round(100 * SHARE, 1),
                "in_one_piece": round(float(pieces.mean()), 5),
                "in_one_piece_min": round(float(pieces.min()), 5),
                "draws": len(pieces),
                "repaired": round(float(np.mean([trial.repaired for trial in found])), 5),
                **{
                    key: value
                    for place, (hold, cut_off_key) in enumerate(COLLUSIONS.values())
                    for key, value in (
                        (hold, round(float(held[:, place].mean()), 5)),
                        (f"{hold}_max", round(float(held[:, place].max()), 5)),
                        (cut_off_key, round(float(cut_off[:, place].mean()), 4)),
                    )
                },
                "trials": trials,
            }


def table(rows: Sequence[Row]) -> Table:
    """Put the overlays side by side."""
    shown = Table(
        title=f"{EXPERIMENT.title}: a fifth of the nodes is removed, or lies and is silent",
        caption="One piece: percent of the rest before repair, mean and least. Mended: percent of "
        "trials in which all are one piece ten seconds later. Held: percent of honest "
        "nodes' links, by colluders who claim to be near to everybody; in the next line, near "
        "to all but one another; in the third, not to reach one another. Cut off: honest nodes, "
        "mean of all trials.",
        box=box.SIMPLE,
        title_justify="left",
        caption_justify="left",
        padding=(0, 0),
    )
    headings = ("nodes", "overlay", "one piece", "least", "mended", "held", "most", "cut off")
    for heading in (*headings, "trials"):
        shown.add_column(heading, justify="left" if heading == "overlay" else "right")
    for row in rows:
        keys = ("in_one_piece", "in_one_piece_min", "repaired")
        firsts = str(row["nodes"]), row["overlay"], *(f"{100 * row[key]:.2f}" for key in keys)
        for lie, (hold, cut_off) in COLLUSIONS.items():
            shown.add_row(
                *(firsts if lie == "flattering" else [""] * len(firsts)),
                *(f"{100 * row[key]:.2f}" for key in (hold, f"{hold}_max")),
                *(f"{row[cut_off]:.3f}", str(row["trials"])),
            )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw bars for each overlay, of the first number of nodes."""
    from matplotlib.figure import Figure

    mine = [row for row in rows if row["nodes"] == rows[0]["nodes"]]
    figure = Figure(figsize=(10, 4.5), dpi=150)
    figure.set_layout_engine("constrained")
    names = [row["overlay"] for row in mine]
    shown = (
        ("in one piece after 20 % are removed, %", [100 * r["in_one_piece"] for r in mine]),
        (
            "of honest nodes' links at clannish colluders, %",
            [100 * r["clannish_hold"] for r in mine],
        ),
        ("honest nodes that these cut off", [r["clannish_cut_off"] for r in mine]),
    )
    for axes, (title, values) in zip(figure.subplots(1, 3), shown, strict=True):
        bars = axes.bar(names, values, color=["#8a8a8a", "#1f5f8b"], width=0.6)
        axes.bar_label(bars, fmt="%.4g", padding=2)
        axes.set_title(title, fontsize=10)
        axes.margins(y=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{EXPERIMENT.title}, {rows[0]['nodes']} nodes on {rows[0]['underlay']}")
    save(figure, path)


EXPERIMENT = Experiment(
    name="resilience",
    title="Resilience",
    about="A fifth of the nodes is removed, or lies about delays: what is left of each overlay?",
    defaults=Params(nodes=(60,)),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"underlay", "processing_ms", "learning_s"}),
    most_nodes=2_048,
)
