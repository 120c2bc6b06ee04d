"""`anabranch lab`: the papers' experiments, with the papers' figures beside ours."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from anabranch.cli.console import fail, handled, progress_bar

if TYPE_CHECKING:  # the lab's own imports are slow, and optional: see `experiments`
    from anabranch.lab import experiment as lab

app = typer.Typer(no_args_is_help=True, help="Run the papers' experiments.")

DEFAULT_OUT = Path("figures")

ProcessingMs = Annotated[float | None, typer.Option(help="What a node takes for every hop.")]
LearningS = Annotated[float | None, typer.Option(help="Simulated seconds before it is measured.")]
LegacyStatus = Annotated[
    bool | None, typer.Option("--legacy-status", help="The naive protocol of paper 001, 4.3.")
]
Ordered = Annotated[bool | None, typer.Option("--ordered", help="Store all, and read in order.")]
Traces = Annotated[
    Path | None, typer.Option(help="A folder for a trace of every repeat, for the pipeline.")
]


def experiments() -> "dict[str, lab.Experiment]":
    """Load the lab, which needs more than the rest of the program."""
    try:
        from anabranch.lab.experiments import EXPERIMENTS
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anabranch"):
            raise
        fail(f"the lab needs {error.name}: install it with pip install 'anabranch[lab]'")
    return EXPERIMENTS


@app.command("list")
def list_experiments(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """List the experiments."""
    if as_json:
        for experiment in experiments().values():
            typer.echo(json.dumps({"name": experiment.name, "about": experiment.about}))
        return
    shown = Table(box=box.SIMPLE, show_header=False)
    for experiment in experiments().values():
        shown.add_row(experiment.name, experiment.about)
    Console().print(shown)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="One of those that `lab list` shows.")],
    nodes: Annotated[str | None, typer.Option(help="How many, e.g. 32 or 32,64.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repeats for each number of nodes.")] = None,
    degree: Annotated[int | None, typer.Option(help="Neighbours of each node.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same rows.")] = None,
    overlay: Annotated[str | None, typer.Option(help="How neighbours are chosen.")] = None,
    underlay: Annotated[str | None, typer.Option(help="The network below, or a .csv file.")] = None,
    processing_ms: ProcessingMs = None,
    learning_s: LearningS = None,
    legacy_status: LegacyStatus = None,
    data: Annotated[str | None, typer.Option(help="The file with a published workload.")] = None,
    events: Annotated[int | None, typer.Option(help="How many of a workload's events.")] = None,
    speedup: Annotated[float | None, typer.Option(help="Over the pace of the paper.")] = None,
    capacity: Annotated[float | None, typer.Option(help="Packets a second and node.")] = None,
    ordered: Ordered = None,
    mode: Annotated[str | None, typer.Option(help="sim, live (real processes), or both.")] = None,
    traces: Traces = None,
    engine: Annotated[str, typer.Option(help="What it runs on: local or spark.")] = "local",
    master: Annotated[
        str | None, typer.Option(help="Spark's, e.g. spark://host:7077; else local[*].")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes of --engine local; else 1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the picture, the rows and the options; "
            "figures, unless --json is given."
        ),
    ] = None,
) -> None:
    """Run an experiment; print its table, or its rows as JSON."""
    known = experiments()
    if name not in known:
        fail(f"no experiment is called {name!r}: choose one of {', '.join(known)}")
    chosen = Choice(engine, master, jobs)
    if out is None and not as_json:
        out = DEFAULT_OUT
    given = {
        "nodes": None if nodes is None else numbers(nodes),
        "repeats": repeats,
        "degree": degree,
        "seed": seed,
        "overlay": overlay,
        # Whoever reads a file or writes to a folder may be at home in another folder.
        "underlay": absolute(underlay) if underlay and underlay.endswith(".csv") else underlay,
        "processing_ms": processing_ms,
        "learning_s": learning_s,
        "legacy_status": legacy_status,
        "data": data,
        "events": events,
        "speedup": speedup,
        "capacity": capacity,
        "ordered": ordered,
        "mode": mode,
        "traces": None if traces is None else absolute(traces),
    }
    perform(known[name], given, chosen, as_json, out)


@dataclass(frozen=True)
class Choice:
    """The engine that was chosen, and what it was told."""

    engine: str
    master: str | None
    jobs: int | None

    def __post_init__(self) -> None:
        if self.engine not in ("local", "spark"):
            fail(f"--engine {self.engine} is not there: use --engine local or --engine spark")
        if self.master is not None and self.engine != "spark":
            fail("--master is Spark's: add --engine spark, or leave it out")
        if self.jobs is not None and self.engine != "local":
            fail("--jobs is for --engine local: leave it out, Spark uses all cores of its master")
        if self.jobs is not None and self.jobs < 1:
            fail("--jobs must be 1 or more")

    def load(self, name: str) -> "lab.Engine":
        """Return the engine, which starts what it needs when it is used, and ends it after."""
        from anabranch.lab.engines import counted, in_processes
        from anabranch.lab.experiment import in_turn

        if self.engine == "local":
            return in_turn if self.jobs in (None, 1) else in_processes(self.jobs)
        from anabranch.spark.sweep import on_spark

        sweep = on_spark(f"anabranch lab {name}", self.master)
        return lambda measure, units, progress: counted(units, sweep(measure, units), progress)


def perform(
    experiment: "lab.Experiment",
    given: dict[str, Any],
    chosen: Choice,
    as_json: bool,
    out: Path | None,
) -> None:
    """Run an experiment with the options that were given, print what it finds, and keep it."""
    from anabranch.lab.experiment import OptionError, Samples

    rows: list[dict[str, Any]] = []
    samples = Samples() if out is not None else None
    # Rows that appear on the screen are progress enough, and a bar would run into them.
    shown = not (as_json and sys.stdout.isatty())
    try:
        params = experiment.params(**given)
        make_folder("out", out)
        make_folder("traces", None if params.traces is None else Path(params.traces))
        engine = chosen.load(experiment.name)
        with handled(), progress_bar(experiment.title, shown) as progress:
            for row in experiment.run(params, progress, samples, engine):
                rows.append(row)
                if as_json:
                    print(json.dumps(row), flush=True)
    except OptionError as error:
        fail(str(error))
    if not as_json:
        Console().print(experiment.table(rows))
    if out is not None and samples is not None:
        experiment.draw(rows, samples, out / f"{experiment.name}.png")
        keep(experiment, params, chosen.engine, rows, samples.topologies, out)


def make_folder(option: str, folder: Path | None) -> None:
    """Make the folder for what is kept, if anything is."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--{option} {folder} cannot be made a folder ({error.strerror}): name another")


def keep(
    experiment: "lab.Experiment",
    params: "lab.Params",
    engine: str,
    rows: list[dict[str, Any]],
    topologies: list[dict[str, Any]],
    out: Path,
) -> None:
    """Write the rows, the options that they follow from, and topologies, beside the pictures."""
    name = experiment.name
    (out / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"experiment": name, "engine": engine} | experiment.options_of(params)
    (out / f"{name}.options.json").write_text(json.dumps(options, indent=2) + "\n")
    if topologies:
        lines = ",\n".join(json.dumps(topology) for topology in topologies)
        (out / f"{name}.topology.json").write_text(f"[\n{lines}\n]\n")
    written = ["png", "svg", "jsonl", "options.json", *(["topology.json"] if topologies else [])]
    typer.echo(f"wrote {name}.{{{','.join(written)}}} to {out}", err=True)


def absolute(path: str | Path) -> str:
    """Name a path from the root."""
    return str(Path(path).absolute())


def numbers(text: str) -> tuple[int, ...]:
    """Read a list such as 32,64."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        fail(f"--nodes {text!r} is not a list of numbers: write for example --nodes 32,64")
