"""Is anything lost between nodes that stay, while others come and go? Paper 000, requirement 7.

A tenth of the nodes goes in a minute: every other one says goodbye, the rest crash, half of them
in silence. Each comes back after a while. Some nodes publish all the time, everybody reads in
order, and storage nodes keep what is published, so that gaps are filled. Then all is quiet for a
while, everybody publishes once more, and all must have all of it. What counts is what nodes that
were there from the beginning to the end published for one another.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, unseen
from anabranch.lab.experiments.resilience import OverlayUnit
from anabranch.lab.kernels import Floats, Ints
from anabranch.lab.pictures import save
from anabranch.lab.topologies import topology_of
from anabranch.lab.underlays import make_underlay
from anabranch.overlays import TOPOLOGIES
from anabranch.sim.faults import Faults
from anabranch.sim.network import Underlay
from anabranch.sim.scenario import Run, Scenario

SHARE_A_MINUTE = 0.1
AWAY_S = 20.0
FOR_S = 60.0
STORAGE = 2


class Survived(NamedTuple):
    """What came of a run."""

    left: int
    crashed: int
    stayed: int
    deliveries: int
    expected: int  # deliveries between nodes that stayed
    lost: int  # of these
    gaps: int  # that readers were told of, since they could not be filled
    broken: int  # rules
    delays_ms: Floats  # percentiles of all deliveries
    links: Ints  # at the end


def cut(params: Params) -> list[OverlayUnit]:
    """Cut by the number of nodes, the overlay and the repeat."""
    return [
        OverlayUnit(params, nodes, repeat, nodes, overlay)
        for nodes in params.nodes
        for overlay in TOPOLOGIES
        for repeat in range(params.repeats or 1)
    ]


def measure(unit: OverlayUnit, progress: Progress = unseen) -> Survived:
    """Let a network live through it."""
    params = unit.params
    every_s = 2 * 60.0 / (SHARE_A_MINUTE * unit.nodes)  # of each kind
    scenario = Scenario(
        name="churn",
        nodes=unit.nodes,
        overlay=unit.overlay,
        degree=params.degree,
        underlay=params.underlay,
        storage=STORAGE,
        run_for_s=FOR_S,
        faults=Faults(
            churn_every_s=every_s,
            churn_for_s=AWAY_S,
            crash_every_s=every_s,
            crash_for_s=AWAY_S,
        ),
    )

    made: list[Underlay] = []

    def make(scenario: Scenario, rng: random.Random) -> Underlay:
        made.append(make_underlay(params.underlay, unit.nodes, rng))
        return made[0]

    run = Run(scenario, unit.seed, underlays={params.underlay: make}, progress=progress).go()
    checker, stayed = run.checker, set(run.mishaps.unbroken)
    expected, lost = run.due_and_lost(stayed)
    return Survived(
        *(run.mishaps.counts["churns"], run.mishaps.counts["crashes"], len(stayed)),
        *(len(checker.delays_ms), expected, lost, checker.figures()["gaps"]),
        len(checker.violations),
        np.percentile(checker.delays_ms, range(101)),
        topology_of(run.cluster, made[0]).links(),
    )


def rows(params: Params, results: Iterator[Survived], samples: Samples | None) -> Iterator[Row]:
    """Add up the repeats of each number of nodes and overlay; the samples are delays in ms."""
    repeats = params.repeats or 1
    for nodes in params.nodes:
        delays_ms = []
        for overlay in TOPOLOGIES:
            found = list(islice(results, repeats))
            delays_ms.append(np.mean([each.delays_ms for each in found], axis=0))
            if samples is not None:
                seed = params.seed_of(nodes, 0)
                samples.keep_topology(nodes, seed, found[0].links, overlay=overlay)
            yield {
                "nodes": nodes,
                "overlay": overlay,
                "underlay": params.underlay_name,
                "churn_percent_a_minute": round(100 * SHARE_A_MINUTE, 1),
                "left": sum(each.left for each in found),
                "crashed": sum(each.crashed for each in found),
                "stayed": sum(each.stayed for each in found),
                "deliveries": sum(each.deliveries for each in found),
                "between_those_who_stayed": sum(each.expected for each in found),
                "lost": sum(each.lost for each in found),
                "gaps": sum(each.gaps for each in found),
                "rules_broken": sum(each.broken for each in found),
                "delay_mean_ms": round(float(delays_ms[-1].mean()), 3),
                "delay_p99_ms": round(float(delays_ms[-1][99]), 3),
                "repeats": repeats,
            }
        if samples is not None:
            samples[nodes] = np.array(delays_ms)


def table(rows: Sequence[Row]) -> Table:
    """Put the overlays side by side."""
    shown = Table(
        title=f"{EXPERIMENT.title}: a tenth of the nodes leaves or crashes in a minute",
        caption="Due: deliveries between nodes that stayed; lost: those of them that were not. "
        "Gaps: those that readers were told of. Broken: rules of the simulator.",
        box=box.SIMPLE,
        title_justify="left",
        caption_justify="left",
        padding=(0, 0),
    )
    headings = ("nodes", "overlay", "left", "crashed", "due", "lost", "gaps", "broken", "repeats")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "overlay" else "right")
    for row in rows:
        counts = ("left", "crashed", "between_those_who_stayed", "lost", "gaps", "rules_broken")
        shown.add_row(
            *(str(row["nodes"]), row["overlay"]),
            *(f"{row[key]:,}" for key in counts),
            str(row["repeats"]),
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw how long messages took meanwhile, for each overlay and the first number of nodes."""
    from matplotlib.figure import Figure

    nodes = rows[0]["nodes"]
    mine = [row for row in rows if row["nodes"] == nodes]
    figure = Figure(figsize=(8, 4.5), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for row, delays_ms, colour in zip(mine, samples[nodes], ("#8a8a8a", "#1f5f8b"), strict=True):
        label = f"{row['overlay']}: {row['lost']} of {row['between_those_who_stayed']:,} lost"
        axes.plot(delays_ms, range(101), color=colour, linewidth=2, label=label)
    axes.set(xlabel="delay, ms", ylabel="percent of all deliveries", ylim=(0, 100))
    axes.set_xlim(0, 1.5 * float(samples[nodes][:, 99].max()))
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{EXPERIMENT.title}: of {nodes} nodes a tenth goes in a minute")
    save(figure, path)


EXPERIMENT = Experiment(
    name="churn",
    title="Churn",
    about="Nodes leave, crash and come back: do those that stay lose anything?",
    defaults=Params(nodes=(500,)),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"underlay"}),
    most_nodes=2_048,
)
