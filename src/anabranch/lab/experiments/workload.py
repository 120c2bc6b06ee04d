"""Does everybody get what it subscribed to? Paper 002, section 5, Figures 6, 7, 10 and 11.

A hundred nodes play the paper's workload, comments of Reddit in 23 topics: under normal conditions,
and with a latency of 500 ms and 300 ms of jitter, which Toxiproxy draws uniformly for every packet
while it keeps their order. An event is published every 0.2 s, the paper's pace under normal
conditions, and nobody waits for another. Nodes are bounded as the paper's were: a hundred of them
shared five machines of two processors, so each has a tenth of one; a packet is taken to need 2 ms
of a processor.

With --ordered there are storage nodes, and everybody reads in order and fills gaps from them.

A subscription's share is of the events that others published in its topic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from anabranch.lab import workload as files
from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.pictures import save
from anabranch.lab.playback import Network, Played, play
from anabranch.lab.workload import Workload

EVERY_S = 85 * 60 / 25_000  # the paper's 25,000 events took it 85 minutes
CAPACITY = 50.0  # packets a second
ALL = "all"  # instead of a topic

NETWORKS = {"normal": (1.0, 0.0), "latency": (500.0, 300.0)}  # delay, more or less, in ms

# Percent of the deliveries, of the events that were injected and of those that were published.
PAPER = {
    "Pulsarcast": {"normal": (99, 99), "latency": (51, 86)},
    "Pulsarcast, ordered": {"normal": (37, 80), "latency": (32, 62)},
    "Floodsub": {"normal": (41, 41), "latency": (31, 31)},
}
PAPER_NOTE = """\
Deliveries of all events (of those that left their publishers).
In order: Pulsarcast with its order guarantee. Complete: subscriptions of
a node to a topic that got everything."""


@dataclass(frozen=True, kw_only=True)
class Playing(Unit):
    """A repeat in one of the networks, with what is played."""

    network: str
    workload: Workload


def cut(params: Params) -> list[Playing]:
    """Cut by the number of nodes, the network and the repeat."""
    assert params.data is not None
    whole = files.read(Path(params.data))
    parts = [whole.cut(nodes, params.events) for nodes in params.nodes]
    return [
        Playing(params, part.nodes, repeat, len(part.events), network=network, workload=part)
        for part in parts
        for network in NETWORKS
        for repeat in range(params.repeats or 1)
    ]


def measure(unit: Playing, progress: Progress = unseen) -> Played:
    """Play a workload once."""
    params = unit.params
    network = Network(
        params.overlay, params.degree, params.ordered, *NETWORKS[unit.network], params.capacity
    )
    every_s = EVERY_S / params.speedup
    return play(unit.workload, network, every_s, f"{unit.seed}/{unit.network}", progress)


def rows(params: Params, results: Iterator[Played], samples: Samples | None) -> Iterator[Row]:
    """Yield a row for each network and topic, and for all topics; the samples are delays in ms."""
    for nodes in params.nodes:
        for network in NETWORKS:
            runs = list(islice(results, params.repeats or 1))
            names = {"nodes": nodes, "overlay": params.overlay, "ordered": params.ordered}
            for row in rows_of(runs[0].workload, runs):
                yield names | {"network": network} | row
            if samples is not None:
                seed = f"{params.seed_of(nodes, 0)}/{network}"
                for topic, links in zip(runs[0].workload.topics, runs[0].links, strict=True):
                    samples.keep_topology(nodes, seed, links, network=network, topic=topic)
                # Of the last network: the one with latency.
                delays_ms = np.concatenate([1000 * delays_of(each, ALL) for each in runs])
                samples[nodes] = np.sort(delays_ms)


# --- Rows -----------------------------------------------------------------------------------


def rows_of(workload: Workload, runs: Sequence[Played]) -> Iterator[Row]:
    """Summarise the repeats: all topics first, then each that has events."""
    published = {workload.topics[topic] for _, topic in workload.events}
    for topic in (ALL, *(name for name in workload.topics if name in published)):
        yield {"topic": topic} | figures_of(workload, topic, runs) | {"repeats": len(runs)}


def figures_of(workload: Workload, topic: str, runs: Sequence[Played]) -> Row:
    """Count what came of a topic's events in all repeats, and how long it took."""
    events = events_of(workload, topic)
    wanted = workload.expected()[events]
    came = [~np.isnan(each.delays_s[events]) & wanted for each in runs]
    expected, delivered = int(wanted.sum()) * len(runs), int(sum(each.sum() for each in came))
    left = int(sum(wanted[each.published[events]].sum() for each in runs))
    delays_ms = 1000 * np.concatenate([delays_of(each, topic) for each in runs])
    some = delays_ms if delays_ms.size else np.zeros(1)
    return {
        "events": len(wanted) * len(runs),
        "published": int(sum(each.published[events].sum() for each in runs)),
        "expected": expected,
        "delivered": delivered,
        "fulfilled": share(delivered, expected),
        "fulfilled_of_published": share(delivered, left),
        **subscriptions_of(workload, topic, runs),
        "mean_ms": round(float(some.mean()), 3),
        "p50_ms": round(float(np.quantile(some, 0.5)), 3),
        "p99_ms": round(float(np.quantile(some, 0.99)), 3),
        "max_ms": round(float(some.max()), 3),
        "disorder": sum(int(each.disorder[events].sum()) for each in runs),
        "busiest": round(max(each.busiest for each in runs), 4),
        "longest_wait_ms": round(1000 * max(each.longest_wait_s for each in runs), 3),
    }


def subscriptions_of(workload: Workload, topic: str, runs: Sequence[Played]) -> Row:
    """Count the subscriptions to which anything should come, and those to which all of it came."""
    all_topics = np.array([number for _, number in workload.events])
    wanted = workload.expected()
    subscriptions = complete = 0
    for number, name in enumerate(workload.topics):
        if topic not in (ALL, name):
            continue
        events = all_topics == number
        subscribers = wanted[events].any(axis=0)
        subscriptions += int(subscribers.sum()) * len(runs)
        for each in runs:
            lacks = (wanted[events] & np.isnan(each.delays_s[events])).any(axis=0)
            complete += int((subscribers & ~lacks).sum())
    return {"subscriptions": subscriptions, "complete": complete}


def events_of(workload: Workload, topic: str) -> NDArray[np.bool_]:
    """Tell which events are a topic's."""
    return np.array([topic in (ALL, workload.topics[number]) for _, number in workload.events])


def delays_of(played: Played, topic: str) -> NDArray[np.float64]:
    """Return the delays of the deliveries that there should be and that there were."""
    events = events_of(played.workload, topic)
    delays_s = played.delays_s[events][played.workload.expected()[events]]
    return delays_s[~np.isnan(delays_s)]


def share(part: int, whole: int) -> float:
    """Return a share that says 1 only if nothing is missing, and of nothing is nothing missing."""
    return 1.0 if part == whole else min(round(part / whole, 6), 0.999999)


# --- What the reader sees -------------------------------------------------------------------


def percent(shares: Sequence[float]) -> str:
    """Write two shares, cut and not rounded: 100 means all."""
    of_injected, of_published = (f"{np.floor(1000 * each) / 10:.4g}" for each in shares)
    return f"{of_injected} ({of_published})"


def table(rows: Sequence[Row]) -> Table:
    """Put the shares of the paper's systems beside ours."""
    busiest = max(row["busiest"] for row in rows)
    shown = Table(
        title=f"{EXPERIMENT.title}: percent",
        caption=f"{PAPER_NOTE}\nA node is busy for at most {100 * busiest:.0f} % of the time.",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    papers = ("Pulsar-\ncast", "in\norder", "Flood-\nsub")
    for heading in ("nodes", "network", "ours", *papers, "complete", "p50\ns", "p99\ns"):
        left = heading == "network"
        shown.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        if row["topic"] != ALL:
            continue
        paper = (figures[row["network"]] for figures in PAPER.values())
        shown.add_row(
            str(row["nodes"]),
            row["network"],
            percent((row["fulfilled"], row["fulfilled_of_published"])),
            *(f"{injected} ({published})" for injected, published in paper),
            f"{row['complete']}/{row['subscriptions']}",
            f"{row['p50_ms'] / 1000:.2f}",
            f"{row['p99_ms'] / 1000:.2f}",
        )
    return shown


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw what share of a topic's deliveries there was, and how long they took with latency."""
    from matplotlib.figure import Figure

    nodes = max(samples)
    figure = Figure(figsize=(12, 6), dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    topics = [row for row in rows if row["topic"] != ALL and row["nodes"] == nodes]
    for shift, color, network in ((-0.2, "#8fb8d3", "normal"), (0.2, "#1f5f8b", "latency")):
        mine = [row for row in topics if row["network"] == network]
        places = np.arange(len(mine)) + shift
        shares = [100 * row["fulfilled"] for row in mine]
        left.bar(places, shares, width=0.4, color=color, label=f"ours, {network}")
    names = [row["topic"] for row in topics if row["network"] == "latency"]
    for (name, figures), color in zip(
        PAPER.items(), ("#b3471d", "#d9a441", "#8a8a8a"), strict=True
    ):
        of_published = figures["latency"][1]
        left.axhline(of_published, color=color, linestyle="--", label=f"paper: {name}, latency")
    left.set_xticks(range(len(names)), names, rotation=60, ha="right")
    left.set(title="Deliveries by topic", ylabel="percent of what should come", ylim=(0, 105))
    quantiles = np.linspace(0, 1, 1001)
    if samples[nodes].size:
        right.plot(np.quantile(samples[nodes], quantiles) / 1000, quantiles, color="#1f5f8b")
    right.set(
        title="Delay with latency",
        xlabel="from publishing to delivery (s)",
        ylabel="share of the deliveries",
        xlim=(0, None),
        ylim=(0, 1.02),
    )
    left.legend(framealpha=0.95, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{EXPERIMENT.title} ({nodes} nodes)")
    save(figure, path)


EXPERIMENT = Experiment(
    name="workload",
    title="Subscriptions fulfilled",
    about="does everybody get all of a published workload (paper 002, Figures 6, 7, 10 and 11)",
    defaults=Params(nodes=(100,), capacity=CAPACITY),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"overlay", "data", "events", "speedup", "capacity", "ordered"}),
    needs=frozenset({"data"}),
    most_nodes=1_000,
)
