"""Does it pay to reject neighbours? Paper 000's requirements 9 and 10, fairness and security.

A trial grows one network several times from the same seed and runs each for an hour. In the first
all nodes are honest. In others one node rejects its farther neighbours, in the hope of nearer ones:
it reports them as unreachable, or claims their links and refuses them. Its mean delay of messages
over the hour is compared with that in the honest network. In the last two, colluders that pass
nothing on reject every honest neighbour until they are next to a chosen victim, in the same two
ways: how many honest neighbours does the victim keep?
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from anabranch.core.ids import NodeId
from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.kernels import Ints, from_all
from anabranch.lab.pictures import draw_gains
from anabranch.lab.topologies import links_of, topology_of
from anabranch.lab.underlays import make_underlay
from anabranch.sim.byzantine import Surrounding
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Underlay
from anabranch.sim.simulator import Simulator

SINGLE = ("rejecting", "rejecting-once", "refusing")  # what one liar does
COLLUDING = ("surrounding", "surrounding-refusing")
SETTLE_S = 60.0
MEASURE_EVERY_S = 60.0
LOOK_EVERY_S = 10.0
TRIALS = 20
HOUR_S = 3600.0


class Trial(NamedTuple):
    """What came of a trial: one entry for the honest network and each single liar, or collusion."""

    mean_ms: list[float]  # delay to the node, over the hour, while it has neighbours
    last_ms: list[float]  # the same at the end
    served: list[float]  # share of the hour in which it has neighbours
    fewest: list[int]  # honest neighbours of the victim, at its worst
    surrounded_s: list[float]  # when the victim had no honest neighbour; infinite: never
    links: Ints  # of the honest network


def colluders(nodes: int) -> int:
    """Return how many of so many nodes collude: 4 of 50, and a tenth of larger networks."""
    return max(1, nodes * 4 // 50) if nodes <= 50 else nodes // 10


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes and the trial."""
    trials = range(params.repeats or TRIALS)
    return [Unit(params, nodes, trial, nodes) for nodes in params.nodes for trial in trials]


def measure(unit: Unit, progress: Progress = unseen) -> Trial:
    """Run the honest network, each single liar, and each collusion."""
    rng = random.Random(f"{unit.seed}/liars")
    liar, victim, *fellows = rng.sample(range(unit.nodes), 2 + colluders(unit.nodes))
    trial = Trial([], [], [], [], [], _grown(unit, {})[0][1])
    ways = 1 + len(SINGLE) + len(COLLUDING)
    for kind in (None, *SINGLE):
        (cluster, _), underlay = _grown(unit, {} if kind is None else {liar: kind})
        found = list(_delays_ms(cluster, underlay, liar, unit))
        served = [ms for ms in found if ms < math.inf]
        trial.mean_ms.append(sum(served) / max(1, len(served)))
        trial.last_ms.append(found[-1])
        trial.served.append(len(served) / len(found))
        progress(len(trial.mean_ms) / ways)
    for kind in COLLUDING:
        (cluster, _), _ = _grown(unit, dict.fromkeys(fellows, kind), victim)
        fewest, surrounded_s = _surround(cluster, victim, unit)
        trial.fewest.append(fewest)
        trial.surrounded_s.append(surrounded_s)
        progress((len(trial.mean_ms) + len(trial.fewest)) / ways)
    return trial


def _grown(
    unit: Unit, disguises: Mapping[int, str], victim: int | None = None
) -> tuple[tuple[Cluster, Ints], Underlay]:
    """Let all nodes subscribe, and give them time to find their neighbours."""
    params, seed = unit.params, unit.seed
    underlay = make_underlay(params.underlay, unit.nodes, random.Random(f"{seed}/underlay"))
    sim = Simulator(underlay, seed, processing_s=params.processing_s)
    cluster = Cluster(
        sim, seed, unit.nodes, overlay=params.overlay, degree=params.degree, disguises=disguises
    )
    for node in cluster.peers:
        if victim is not None and isinstance(node.machine, Surrounding):
            node.machine.victim = cluster.peers[victim].id
        cluster.subscribe(node, cluster.parts[0])
    sim.run(sim.now + SETTLE_S)
    return (cluster, topology_of(cluster, underlay).links()), underlay


def _delays_ms(cluster: Cluster, underlay: Underlay, node: int, unit: Unit) -> Iterator[float]:
    """Measure the mean delay to a node again and again; infinite while it has no neighbours."""
    sim, until = cluster.sim, cluster.sim.now + (unit.params.learning_s or HOUR_S)
    while sim.now < until:
        sim.run(sim.now + MEASURE_EVERY_S)
        topology = topology_of(cluster, underlay, unit.params.processing_s)
        if not topology.neighbours[node]:
            yield math.inf
            continue
        delays_s, _ = from_all(topology.graph())
        to_s = np.delete(delays_s[:, node], node)
        yield 1000 * float(to_s[np.isfinite(to_s)].mean())


def _surround(cluster: Cluster, victim: int, unit: Unit) -> tuple[int, float]:
    """Return how few honest neighbours the victim had, and when it had none."""
    sim, began_at = cluster.sim, cluster.sim.now
    me, honest = cluster.peers[victim].id, {node.id for node in cluster.honest}
    fewest = cluster.degree
    while sim.now < began_at + (unit.params.learning_s or HOUR_S):
        sim.run(sim.now + LOOK_EVERY_S)
        fewest = min(fewest, _honest_neighbours(cluster, me, honest))
        if not fewest:
            return 0, sim.now - began_at
    return fewest, math.inf


def _honest_neighbours(cluster: Cluster, node: NodeId, honest: set[NodeId]) -> int:
    links = links_of(cluster)
    return sum(peer in honest and node in links[peer] for peer in links[node])


def rows(params: Params, results: Iterator[Trial], samples: Samples | None) -> Iterator[Row]:
    """Compare each lie with honesty in the same networks; the samples are differences in ms."""
    trials = params.repeats or TRIALS
    for nodes in params.nodes:
        found = list(islice(results, trials))
        mean_ms = np.array([trial.mean_ms for trial in found])  # trial, way
        last_ms = np.array([trial.last_ms for trial in found])
        if samples is not None:
            samples[nodes] = (mean_ms[:, 1:] - mean_ms[:, :1]).T
            samples.keep_topology(nodes, params.seed_of(nodes, 0), found[0].links)
        common = {"nodes": nodes, "overlay": params.overlay, "underlay": params.underlay_name}
        for place, lie in enumerate(SINGLE, 1):
            more_ms = mean_ms[:, place] - mean_ms[:, 0]
            at_end_ms = (last_ms[:, place] - last_ms[:, 0])[np.isfinite(last_ms[:, place])]
            error_ms = float(more_ms.std(ddof=1)) / math.sqrt(trials) if trials > 1 else None
            yield {
                **common,
                "lie": lie,
                "liars": 1,
                "honest_ms": round(float(mean_ms[:, 0].mean()), 3),
                "lying_ms": round(float(mean_ms[:, place].mean()), 3),
                "more_ms": round(float(more_ms.mean()), 3),
                "error_ms": None if error_ms is None else round(error_ms, 3),
                "more_at_end_ms": round(float(at_end_ms.mean()), 3) if len(at_end_ms) else None,
                "served": round(float(np.mean([trial.served[place] for trial in found])), 4),
                "trials": trials,
            }
        for place, lie in enumerate(COLLUDING):
            fewest = [trial.fewest[place] for trial in found]
            times_s = [trial.surrounded_s[place] for trial in found]
            yield {
                **common,
                "lie": lie,
                "liars": colluders(nodes),
                "honest_neighbours": round(float(np.mean(fewest)), 3),
                "honest_neighbours_min": min(fewest),
                "surrounded": sum(time_s < math.inf for time_s in times_s),
                "surrounded_first_s": min((t for t in times_s if t < math.inf), default=None),
                "trials": trials,
            }


def table(rows: Sequence[Row]) -> Table:
    """Put the lies below each other."""
    shown = Table(
        title=f"{EXPERIMENT.title}: rejecting neighbours for an hour, and what comes of it",
        caption="More: mean delay of messages to the liar beyond that of the same node when it is "
        "honest, with its standard error; and at the end of the hour. Served: share of the hour "
        "in which it has neighbours. Honest: neighbours of the victim that do not collude, mean "
        "of the fewest and the least; surrounded: trials in which it lost all of them.",
        box=box.SIMPLE,
        title_justify="left",
        caption_justify="left",
    )
    headings = ("nodes", "lie", "liars", "honest", "more", "+-", "at end", "served")
    for heading in (*headings, "keeps", "least", "surrounded", "trials"):
        shown.add_column(heading, justify="left" if heading == "lie" else "right")
    for row in rows:
        first = (str(row["nodes"]), row["lie"], str(row["liars"]))
        if row["lie"] in SINGLE:
            error_ms, end_ms = row["error_ms"], row["more_at_end_ms"]
            shown.add_row(
                *(*first, f"{row['honest_ms']:.1f} ms", f"{row['more_ms']:+.2f}"),
                "" if error_ms is None else f"{error_ms:.2f}",
                "" if end_ms is None else f"{end_ms:+.2f}",
                *(f"{100 * row['served']:.0f} %", "", "", "", str(row["trials"])),
            )
        else:
            kept = f"{row['honest_neighbours']:.2f}", str(row["honest_neighbours_min"])
            counts = str(row["surrounded"]), str(row["trials"])
            shown.add_row(*first, *([""] * 5), *kept, *counts)
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw how the differences are spread, for each single liar, of the first number of nodes."""
    nodes = rows[0]["nodes"]
    mine = [row for row in rows if row["nodes"] == nodes and row["lie"] in SINGLE]
    labels = [f"{row['lie']}\nmean {row['more_ms']:+.2f} ms" for row in mine]
    count = mine[0]["trials"]
    title = f"{EXPERIMENT.title}: one of {nodes} nodes, an hour, {count} networks"
    draw_gains(labels, samples[nodes], title, path)


EXPERIMENT = Experiment(
    name="complaints",
    title="Complaints",
    about="Nodes reject honest neighbours: do they gain, or surround a victim?",
    defaults=replace(Params(nodes=(50,)), underlay="cities"),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"overlay", "underlay", "processing_ms", "learning_s"}),
    most_nodes=2_048,
)
