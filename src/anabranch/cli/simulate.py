"""`anabranch simulate`: run a scenario from a seed, and say what it showed."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from anabranch.cli.console import fail, progress_bar
from anabranch.core.errors import LocalError
from anabranch.lab.underlays import AWS16
from anabranch.sim import scenario as scenarios
from anabranch.sim.random_scenario import (
    random_calm_scenario,
    random_scenario,
    random_storage_scenario,
    random_trust_scenario,
)
from anabranch.sim.scenario import Run, Scenario, builtin_names, check, load
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

RANDOM = {  # of `make soak`
    "random": random_scenario,
    "random-trust": random_trust_scenario,
    "random-storage": random_storage_scenario,
    "random-calm": random_calm_scenario,
}
UNDERLAYS: dict[str, scenarios.MakeUnderlay] = {
    **scenarios.UNDERLAYS,
    "aws16": lambda scenario, rng: AWS16(scenario.nodes),
}


def simulate(
    scenario: Annotated[
        str,
        typer.Argument(
            help=f"A TOML file, or one of: {', '.join(builtin_names())}; "
            f"or {' or '.join(RANDOM)}, which draw one from the seed."
        ),
    ],
    seed: Annotated[int, typer.Option(help="Same seed, same run, byte for byte.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines: options, result.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write every event to this .jsonl or .parquet file.")
    ] = None,
) -> None:
    """Simulate a network, its workload and its faults, and check that it behaves."""
    try:
        chosen = RANDOM[scenario](seed) if scenario in RANDOM else load(scenario)
        run = partial(Run, check(chosen, UNDERLAYS), seed, underlays=UNDERLAYS)
        writer = TraceWriter(trace)
    except (LocalError, OSError) as error:
        fail(str(error))
    _show_options(chosen, seed, as_json)
    with writer, progress_bar(f"simulating {chosen.name}", shown=not as_json) as progress:
        report = run(recorder=Recorder(writer.write), progress=progress).go().report()
    result = report | {"trace_records": writer.records, "trace_sha256": writer.sha256()}
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _show_result(result, trace)
    if result["violations"]:
        raise typer.Exit(1)


def _show_options(scenario: Scenario, seed: int, as_json: bool) -> None:
    """Print the seed and every option first, so that any run can be run again."""
    options = {"seed": seed, **msgspec.to_builtins(scenario)}
    if as_json:
        typer.echo(json.dumps(options))
        return
    typer.echo(f"{scenario.name}, seed {seed}: {scenario.about}".rstrip(": "))
    faults = options.pop("faults")
    packets = faults.pop("packets")
    shown = {**options, **faults, **packets}
    skip = ("seed", "name", "about")
    plain = [f"{key}={value}" for key, value in shown.items() if key not in skip]
    Console(highlight=False, soft_wrap=False).print("[dim]" + " ".join(plain) + "[/dim]")


def _show_result(result: dict[str, Any], trace: Path | None) -> None:
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    mishaps = ("crashes", "churns", "tracker_crashes", "partitions", "clogs")
    stored = ("storage_crashes", "full_disks", "receipts", "gaps", "settled")
    rows = {
        "frames published": result["frames_published"],
        "deliveries": result["deliveries"],
        "lost at nodes alive throughout": result["lost_at_nodes_alive_throughout"],
        "delay, mean": f"{result['delay_mean_ms']:.1f} ms",
        "delay, p50": f"{result['delay_p50_ms']:.1f} ms",
        "delay, p99": f"{result['delay_p99_ms']:.1f} ms",
        "hops, mean": f"{result['hops_mean']:.2f}",
        "duplicates per delivery": f"{result['duplicates_per_delivery']:.2f}",
        **{name.replace("_", " "): result[name] for name in mishaps if result[name]},
        **{name.replace("_", " "): result[name] for name in stored if name in result},
        "events handled": f"{result['events']:,}",
        "simulated": f"{result['simulated_s']:.0f} s",
        "trace": f"{result['trace_records']:,} records",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console().print(table)
    typer.echo(f"trace sha256 {result['trace_sha256']}")
    if trace is not None:
        typer.echo(f"trace written to {trace}")
    for violation in result["violations"]:
        typer.echo(f"VIOLATION {violation}", err=True)
    if result["violations"]:
        typer.echo(f"{len(result['violations'])} violations: run the same seed again", err=True)
    else:
        typer.echo("all checks hold: safety throughout, liveness after the faults")
    sys.stdout.flush()
