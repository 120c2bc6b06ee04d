"""Do real nodes do what simulated ones do? Paper 000, section V-C, with real clocks.

The whole procedure of the papers on one machine: a process for each node, a tracker, links as long
as those between sixteen Amazon regions (lab/emulator.py). Beside it stands what the simulator gives
for as many nodes, over many overlays and over the very same one, and the papers' figures.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from anabranch.lab import emulator
from anabranch.lab.emulator import Emulated, emulate
from anabranch.lab.experiment import Experiment, Params, Progress, Row, Samples, Unit, unseen
from anabranch.lab.experiments import propagation
from anabranch.lab.experiments.propagation import figures_of, mean_of_pairs, pairs_of
from anabranch.lab.flooding import Flood
from anabranch.lab.pictures import save
from anabranch.lab.underlays import make_underlay, mean_delay_s
from anabranch.sim.network import Underlay

DEFAULT_NODES = 16
REPEATS = 3
SIMULATED = 20  # overlays beside each real one: the means of single ones spread by a tenth
OF_SIMULATOR = ("mean_ms", "p50_ms", "p99_ms", "max_ms", "rdp", "duplicates", "hops_mean")
SHARES = np.linspace(0, 1, 1001)
NOTE = """\
same overlay: the mean that the simulator gives on the overlays of the real nodes.
RDP, relative delay penalty: mean delay over that of sending straight to each."""

Measured = tuple[Emulated, float, list[tuple[Flood, float]], float]


@dataclass(frozen=True)
class Figures:
    """The floods of some overlays, and the relative delay penalty of each."""

    floods: tuple[Flood, ...]
    penalties: tuple[float, ...]

    @property
    def delays_ms(self) -> NDArray[np.float64]:
        """All delays together, ascending."""
        return np.sort(1000 * np.concatenate([pairs_of(flood.delays_s) for flood in self.floods]))

    def row(self) -> Row:
        """Summarise them."""
        return figures_of(self.floods, self.penalties, self.delays_ms)


def cut(params: Params) -> list[Unit]:
    """Cut by the number of nodes and the repeat."""
    for nodes in params.nodes:
        emulator.check_size(nodes)
    return [
        Unit(params, nodes, repeat)
        for nodes in params.nodes
        for repeat in range(params.repeats or REPEATS)
    ]


def measure(unit: Unit, progress: Progress = unseen) -> Measured:
    """Return what real nodes measured and their penalty, simulated ones, and the same overlay."""
    underlay = make_underlay(
        unit.params.underlay, unit.nodes, random.Random(f"{unit.seed}/underlay")
    )
    emulated = emulate(unit, underlay, progress)
    penalty = mean_of_pairs(emulated.delays_s) / mean_delay_s(underlay, unit.nodes)
    simulated = [
        propagation.measure(Unit(unit.params, unit.nodes, SIMULATED * unit.repeat + number))
        for number in range(SIMULATED)
    ]
    return emulated, penalty, simulated, fastest_ms(emulated, underlay)


def fastest_ms(emulated: Emulated, underlay: Underlay) -> float:
    """Return the mean over the fastest paths: simulated floods take just these."""
    sources, targets = np.array(emulated.links).T
    delays_s = [underlay.delay_s(a, b) for a, b in emulated.links]
    shape = emulated.delays_s.shape
    return 1000 * mean_of_pairs(dijkstra(csr_array((delays_s, (sources, targets)), shape=shape)))


def rows(params: Params, results: Iterator[Measured], samples: Samples | None) -> Iterator[Row]:
    """Summarise each number of nodes; the samples are quantiles, real ones above simulated ones."""
    for nodes in params.nodes:
        measured = list(islice(results, params.repeats or REPEATS))
        emulated, penalties, simulated, same_ms = zip(*measured, strict=True)
        real = Figures(tuple(map(as_flood, emulated)), penalties)
        floods, others = zip(*(pair for pairs in simulated for pair in pairs), strict=True)
        sim = Figures(floods, others)
        if samples is not None:
            quantiles = [np.quantile(each.delays_ms, SHARES) for each in (real, sim)]
            samples[nodes] = np.array(quantiles)
            links = real.floods[0].links
            samples.keep_topology(nodes, params.seed_of(nodes, 0), links[links[:, 0] < links[:, 1]])
        of_sim = sim.row()
        yield {
            "nodes": nodes,
            "overlay": params.overlay,
            "underlay": params.underlay,
            **real.row(),
            "same_overlay_ms": round(float(np.mean(same_ms)), 3),
            **{f"sim_{key}": of_sim[key] for key in OF_SIMULATOR},
            "sim_repeats": of_sim["repeats"],
        }


def as_flood(emulated: Emulated) -> Flood:
    """Return what was measured as if it had been simulated."""
    figures = (emulated.delays_s, emulated.hops, emulated.duplicates, emulated.estimated_s)
    return Flood(*figures, np.array(emulated.links, dtype=np.int64))


# --- What the reader sees -------------------------------------------------------------------


def table(rows: Sequence[Row]) -> Table:
    """Put real nodes, simulated ones and the papers' side by side."""
    shown = Table(
        title=f"{EXPERIMENT.title}: delays in ms (least-greatest of the repeats' means)",
        caption=NOTE,
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("nodes", "", "mean", "p50", "p99", "RDP", "dupli-\ncates", "hops"):
        shown.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for row in rows:
        nodes, spread = str(row["nodes"]), propagation.spread
        mean_ms = spread(row["mean_ms_min"], row["mean_ms"], row["mean_ms_max"])
        shown.add_row(nodes, "real nodes", mean_ms, *_others(row, ""))
        shown.add_row("", "same overlay", f"{row['same_overlay_ms']:.0f}")
        shown.add_row("", "simulated", f"{row['sim_mean_ms']:.0f}", *_others(row, "sim_"))
    for name, figures in _papers():
        size = min(figures)
        shown.add_row(str(size), name, propagation.spread(*figures[size]))
    return shown


def _others(row: Row, whose: str) -> list[str]:
    digits = {"p50_ms": 0, "p99_ms": 0, "rdp": 2, "duplicates": 2, "hops_mean": 2}
    return [f"{row[whose + key]:.{places}f}" for key, places in digits.items()]


def _papers() -> tuple[tuple[str, dict[int, tuple[int, int, int]]], ...]:
    return (
        ("paper, WebRTC", propagation.PAPER_WEBRTC),
        ("paper, WebSocket", propagation.PAPER_WEBSOCKET),
    )


def draw(rows: Sequence[Row], samples: Samples, path: Path) -> None:
    """Draw the distribution of the delays, of real nodes and of simulated ones."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    shades = np.linspace(0.7, 0.1, len(samples))
    for shade, (nodes, (real_ms, sim_ms)) in zip(shades, sorted(samples.items()), strict=True):
        color = colormaps["viridis"](shade)
        axes.plot(real_ms, SHARES, color=color, label=f"{nodes} real nodes")
        axes.plot(sim_ms, SHARES, "--", color=color, alpha=0.7, label=f"{nodes} simulated")
    axes.set(
        title=EXPERIMENT.title,
        xlabel="delay from publisher to subscriber (ms)",
        ylabel="share of the deliveries",
        xlim=(0, None),
        ylim=(0, 1.02),
    )
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


EXPERIMENT = Experiment(
    name="emulation",
    title="Real nodes, as far apart as Amazon's regions",
    about="the papers' procedure with real processes and clocks (paper 000, section V-C)",
    defaults=Params(nodes=(DEFAULT_NODES,)),
    cut=cut,
    measure=measure,
    rows=rows,
    table=table,
    draw=draw,
    options=frozenset({"overlay", "underlay"}),
)
