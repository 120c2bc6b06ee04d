"""Does it pay to lie about delays? Paper 000's requirement 9, fairness.

A trial grows one network several times from the same seed: with all nodes honest, and with one of
them lying about its round trips in each of several ways, though it passes everything on. What is
looked at is how long messages take to that node, and from it, once the overlay has learned.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.kernels import Ints, from_all
from anabranch.lab.pictures import draw_gains
from anabranch.lab.topologies import Topology, grow, topology_of
from anabranch.lab.underlays import make_underlay

LIES = {"nearest": "a microsecond", "nearer": "a third", "farther": "ten times"}  # of a round trip
TRIALS = 50
SURE = 2.0  # standard errors of the mean, beyond which a difference is none by chance


class Trial(NamedTuple):
    """How long messages take on average to one node and from it: honest, and with each lie."""

    to_ms: list[float]
    from_ms: list[float]
    links: Ints  # when it is honest


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes and the trial."""
    trials = range(params.repeats or TRIALS)
    return [Unit(params, nodes, trial, nodes) for nodes in params.nodes for trial in trials]


def measure(unit: Unit, progress: Progress = unseen) -> Trial:
    """Let one node be honest, and then lie in each way; return what comes of each."""
    liar = random.Random(f"{unit.seed}/liar").randrange(unit.nodes)
    honest = _grown(unit, {})
    trial = Trial([], [], honest.links())
    for lie in (None, *LIES):
        topology = honest if lie is None else _grown(unit, {liar: lie})
        delays_s, _ = from_all(topology.graph())
        trial.to_ms.append(1000 * float(delays_s[:, liar].sum()) / (unit.nodes - 1))
        trial.from_ms.append(1000 * float(delays_s[liar].sum()) / (unit.nodes - 1))
        progress(len(trial.to_ms) / (1 + len(LIES)))
    return trial


def _grown(unit: Unit, disguises: dict[int, str]) -> Topology:
    params, seed = unit.params, unit.seed
    underlay = make_underlay(params.underlay, unit.nodes, random.Random(f"{seed}/underlay"))
    options = params.degree, params.overlay, seed, params.processing_s, params.learning
    cluster = grow(underlay, unit.nodes, *options, disguises)
    return topology_of(cluster, underlay, params.processing_s)


def rows(params: Params, results: Iterator[Trial], samples: Samples | None) -> Iterator[Row]:
    """Hold each lie against honesty, in the same networks; the samples are differences in ms."""
    trials = params.repeats or TRIALS
    for nodes in params.nodes:
        found = list(islice(results, trials))
        to_ms = np.array([trial.to_ms for trial in found])  # trial, way
        from_ms = np.array([trial.from_ms for trial in found])
        if samples is not None:
            samples[nodes] = (to_ms[:, 1:] - to_ms[:, :1]).T
            samples.keep_topology(nodes, params.seed_of(nodes, 0), found[0].links)
        for place, lie in enumerate(LIES, 1):
            more_ms = to_ms[:, place] - to_ms[:, 0]
            error_ms = float(more_ms.std(ddof=1)) / math.sqrt(trials) if trials > 1 else None
            mean_ms = float(more_ms.mean())
            yield {
                "nodes": nodes,
                "overlay": params.overlay,
                "underlay": params.underlay_name,
                "lie": lie,
                "honest_ms": round(float(to_ms[:, 0].mean()), 3),
                "lying_ms": round(float(to_ms[:, place].mean()), 3),
                "more_ms": round(mean_ms, 3),
                "error_ms": None if error_ms is None else round(error_ms, 3),
                "gains": error_ms is not None and mean_ms < -SURE * error_ms,
                "from_honest_ms": round(float(from_ms[:, 0].mean()), 3),
                "from_lying_ms": round(float(from_ms[:, place].mean()), 3),
                "trials": trials,
            }


def table(rows: Sequence[Row]) -> Table:
    """Put honesty and each lie side by side."""
    shown = Table(
        title=f"{EXPERIMENT.title}: mean delay of messages to one node, honest and lying",
        caption="Claims: instead of each round trip. The networks are the same each time. "
        "More: what lying costs, with its standard error; a lie gains "
        "if it saves more than two of these.",
        box=box.SIMPLE,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("nodes", "it claims", "honest", "lying", "more", "+-", "gains", "trials"):
        shown.add_column(heading, justify="left" if heading == "it claims" else "right")
    for row in rows:
        error_ms = row["error_ms"]
        shown.add_row(
            *(str(row["nodes"]), LIES[row["lie"]]),
            *(f"{row['honest_ms']:.1f} ms", f"{row['lying_ms']:.1f} ms", f"{row['more_ms']:+.2f}"),
            *("" if error_ms is None else f"{error_ms:.2f}", "yes" if row["gains"] else "no"),
            str(row["trials"]),
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw how the differences are spread, for each lie, of the first number of nodes."""
    nodes, count = rows[0]["nodes"], rows[0]["trials"]
    mine = [row for row in rows if row["nodes"] == nodes]
    labels = [f"{LIES[row['lie']]}\nmean {row['more_ms']:+.2f} ms" for row in mine]
    title = f"{EXPERIMENT.title}: one of {nodes} nodes claims..., {count} networks each"
    draw_gains(labels, samples[nodes], title, path)


EXPERIMENT = Experiment(
    name="fairness",
    title="Fairness",
    about="One node lies about its delays: do messages come to it sooner?",
    defaults=replace(Params(nodes=(32,)), overlay="latency-aware"),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"overlay", "underlay", "processing_ms", "learning_s"}),
    most_nodes=2_048,
)
