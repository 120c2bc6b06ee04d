"""The pipeline's jobs: `anabranch pipeline ...`, and `spark-submit` of this same file.

    anabranch pipeline archive city/vehicles --out table --available-now
    spark-submit --master spark://host:7077 .../anabranch/spark/jobs.py archive city/vehicles ...

Under spark-submit, the master and Spark's settings are those that spark-submit was given.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from anabranch.core.errors import LocalError
from anabranch.spark import places, queries
from anabranch.spark.terminal import Steps, Teller, ending, show_rows, told

if TYPE_CHECKING:  # it is slow to import, and optional
    from pyspark.sql import DataFrame, SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
QUICK = "-XX:TieredStopAtLevel=1"  # halves the work of a job that takes less than a minute
SMALL_BYTES = 512 << 20
# Each hash table of each task takes a page at least; of its own accord Spark takes large ones.
SMALL_SETTINGS = {"spark.buffer.pageSize": "1m"}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Streams and traces into tables and pages, on Spark.",
)

Profile = Annotated[str | None, typer.Option(help="The network to use, by its profile's name.")]
Network = Annotated[
    str | None,
    typer.Option("--network", "--address", help="The network: anabranch://GENESIS@host:port."),
]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="The file of the key to use; default: the profile's.")
]
Master = Annotated[
    str | None, typer.Option(help="Where Spark runs, e.g. local[2] or spark://host:7077.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Stream = Annotated[str | None, typer.Option(help="The stream that nodes publish telemetry to.")]
Traces = Annotated[
    list[str] | None, typer.Argument(help="Traces: .jsonl or .parquet files, or folders of them.")
]
Run = Annotated[
    str | None, typer.Option(help="A name: all records are of one run, such as one network's.")
]


def is_small(traces: Sequence[str]) -> bool:
    """Tell whether traces are so small that Java had better not compile its code too well."""
    if not traces or any(places.ADDRESS.match(trace) for trace in traces):
        return False
    size = 0
    for trace in map(Path, traces):
        try:
            files = places.files_in(trace) if trace.is_dir() else [trace] if trace.is_file() else []
            size += sum(file.stat().st_size for file in files)
        except OSError as error:
            raise LocalError(f"{trace} cannot be read ({error.strerror}): name another") from error
    return size < SMALL_BYTES


def names_of(traces: Sequence[str]) -> str:
    """Name traces for a person, without the folders that they lie in."""
    return ", ".join(Path(os.path.abspath(trace)).name or trace for trace in traces)


@contextmanager
def opened(name: str, master: str | None, small: bool = False) -> "Iterator[SparkSession]":
    """Open Spark for a job, and stop it unless it ran before."""
    from anabranch.spark.session import SETTINGS, own_session, running_master

    console = Console(stderr=True)
    quick = {}
    if small and running_master() is None:
        quick = {**SMALL_SETTINGS, JAVA_OPTIONS: f"{SETTINGS[JAVA_OPTIONS]} {QUICK}"}
    with ExitStack() as opening:
        with console.status("starting Spark") if console.is_terminal else nullcontext():
            spark = opening.enter_context(own_session(f"anabranch {name}", master, **quick))
        before = str(spark.conf.get("spark.sql.session.timeZone"))
        spark.conf.set("spark.sql.session.timeZone", "UTC")  # days are the same everywhere
        try:
            yield spark
        finally:
            spark.conf.set("spark.sql.session.timeZone", before)


def access_of(profile: str | None, network: str | None, key: Path | None) -> dict[str, str]:
    """Return the source's options that name the network and the keys."""
    from anabranch.spark.access import parse_access

    given = {"profile": profile, "network": network, "keyFile": str(key) if key else None}
    access = parse_access({name: value for name, value in given.items() if value is not None})
    return {"network": access.network, "keyFile": access.key_file, "keyStore": access.key_store}


def full_names(access: dict[str, str], streams: Sequence[str]) -> tuple[str, ...]:
    """Return the full names of streams that we can read; say of one that we cannot why."""
    from anabranch.spark.access import look_up, parse_access

    return tuple(dict.fromkeys(found.name for found in look_up(parse_access(access), streams)))


@app.command()
@told
def archive(
    streams: Annotated[list[str], typer.Argument(help="The streams, by name or own path.")],
    out: Annotated[str, typer.Option(help="The table's folder, or its address (s3://...).")],
    format: Annotated[str, typer.Option(help="parquet or delta.")] = "parquet",
    checkpoint: Annotated[
        str | None, typer.Option(help="Where the job remembers how far it is; default: in OUT.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Archive what there is, and end.")
    ] = False,
    trigger: Annotated[
        str | None, typer.Option(help='How often to write, e.g. "10 seconds"; default: 1 second.')
    ] = None,
    starting: Annotated[
        str, typer.Option(help="earliest, latest, or offsets as JSON, at the first start.")
    ] = "earliest",
    max_per_trigger: Annotated[
        int | None, typer.Option(min=1, help="Messages that one batch takes, at most.")
    ] = None,
    profile: Profile = None,
    network: Network = None,
    key: KeyFile = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Write streams into a table, each message exactly once; start it again and it goes on."""
    from anabranch.spark.archive import Archive, check_archive, start_archive

    access = access_of(profile, network, key)
    job = Archive(
        streams=full_names(access, streams),
        out=places.place_of(out),
        format=format,
        checkpoint=None if checkpoint is None else places.place_of(checkpoint),
        starting=starting,
        max_per_trigger=max_per_trigger,
        available_now=available_now,
        trigger=trigger,
        access=access,
    )
    check_archive(job)
    with opened("archive", master) as spark, ending() as ended, Teller(as_json) as tell:
        queries.follow([start_archive(spark, job)], tell, ended)
    tell.finish(job.out)


@app.command()
@told
def telemetry(
    traces: Traces = None,
    stream: Stream = None,
    out: Annotated[str, typer.Option(help="A folder for the tables, one folder for each.")] = "",
    run: Run = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until Ctrl-C, with tables by window.")
    ] = False,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="With --continuous: what there is, and end.")
    ] = False,
    trigger: Annotated[
        str | None, typer.Option(help='How often to write, e.g. "10 seconds"; default: 5 seconds.')
    ] = None,
    profile: Profile = None,
    network: Network = None,
    key: KeyFile = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Make tables of traces, or of the telemetry that nodes publish."""
    traces = _check_input(traces, stream)
    if continuous:
        _check_continuous(stream, run, available_now, trigger)
    elif available_now or trigger is not None:
        raise LocalError("--available-now and --trigger need --continuous: add it")
    if not out:
        raise LocalError("name a folder for the tables: --out DIR")
    place = places.place_of(out)
    places.make_folder(place)
    options = telemetry_options(stream, profile, network, key) if stream else {}
    if continuous:
        _follow_telemetry(options, place, available_now, trigger, master, as_json)
    else:
        with opened("telemetry", master, is_small(traces)) as spark, Steps(as_json) as steps:
            from anabranch.spark.tables import shared
            from anabranch.spark.telemetry import write_tables

            with staged(spark, traces, options, run, steps) as records, shared(records):
                write_tables(records, place, steps)
    if not as_json:
        typer.echo(place)


def _check_continuous(
    stream: str | None, run: str | None, available_now: bool, trigger: str | None
) -> None:
    if stream is None:
        raise LocalError("--continuous needs a stream: name it with --stream")
    if run is not None:
        raise LocalError("with --continuous a run is named by the stream: leave --run out")
    if available_now and trigger is not None:
        raise LocalError("--available-now and --trigger: leave one of them out")


def _follow_telemetry(
    options: dict[str, str],
    place: str,
    available_now: bool,
    trigger: str | None,
    master: str | None,
    as_json: bool,
) -> None:
    with opened("telemetry", master) as spark:
        from anabranch.spark import telemetry as pipeline

        pipeline.check_continuous(options["subscribe"], place)
        with ending() as ended, Teller(as_json) as tell:
            started = pipeline.start_continuous(spark, options, place, available_now, trigger)
            queries.follow(started, tell, ended)
        with Steps(as_json) as steps:
            pipeline.finish_continuous(spark, place, steps)


@app.command()
@told
def report(
    traces: Traces = None,
    stream: Stream = None,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="What stands above it.")] = "Network report",
    run: Run = None,
    profile: Profile = None,
    network: Network = None,
    key: KeyFile = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Make one page of tables and figures of traces, of tables, or of a live network's telemetry.

    A folder that `pipeline telemetry` has written is read as it is.
    """
    traces = _check_input(traces, stream)
    places.check_file(out)
    options = telemetry_options(stream, profile, network, key) if stream else {}
    made = names_of(traces) if traces else f"The telemetry in {options['subscribe']}"
    with opened("report", master, is_small(traces)) as spark, Steps(as_json) as steps:
        from anabranch.spark import telemetry as pipeline
        from anabranch.spark.report import gather, page_of
        from anabranch.spark.tables import shared

        if len(traces) == 1 and pipeline.holds_tables(traces[0]):
            if run is not None:
                raise LocalError(f"{made} holds tables, whose runs are named: leave --run out")
            tables = gather(pipeline.read_tables(spark, traces[0]), steps)
        else:
            with staged(spark, traces, options, run, steps) as records, shared(records):
                made_of = {name: table(records) for name, table in pipeline.TABLES.items()}
                tables = gather(made_of, steps)
    if not tables["runs"].rows:
        raise LocalError(f"{made}: there are no records, and so nothing to report")
    places.write_file(out, page_of(tables, title, made))
    say = {"report": str(out), "records": sum(row["records"] for row in tables["runs"].rows)}
    typer.echo(json.dumps(say) if as_json else str(out))


@app.command()
@told
def paper(
    traces: Annotated[list[str], typer.Argument(help="What `lab run propagation --traces` left.")],
    out: Annotated[Path, typer.Option(help="A folder for the figures.")] = Path("figures"),
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Print Tables 2 and 3 of paper 000, and draw its Figures 7 and 9, of traces alone."""
    places.make_folder(places.place_of(str(out)))
    traces = [places.place_of(trace) for trace in traces]
    with opened("paper", master, is_small(traces)) as spark, Steps(as_json) as steps:
        from anabranch.spark.figures import FIGURES
        from anabranch.spark.tables import PAPER, shared
        from anabranch.spark.traces import read_traces

        with shared(read_traces(spark, *traces)) as records:
            rows = {}
            for index, (name, table) in enumerate(PAPER.items()):
                steps(name, index / len(PAPER) / 2)
                rows[name] = [row.asDict() for row in table(records).collect()]
            if not any(rows.values()):
                made = names_of(traces)
                raise LocalError(f"{made}: nothing was delivered, and so there is nothing to draw")
            for index, (name, draw) in enumerate(FIGURES.items()):
                steps(name, 0.5 + index / len(FIGURES) / 2)
                draw(records).savefig(out / f"{name}.png")
    for name, found in rows.items():
        show_rows(name, found, as_json)
    typer.echo(f"wrote {', '.join(f'{name}.png' for name in FIGURES)} to {out}", err=True)


def _check_input(traces: Sequence[str] | None, stream: str | None) -> list[str]:
    if bool(traces) == (stream is not None):
        raise LocalError("name traces (files or folders), or a stream with --stream")
    return [places.place_of(trace) for trace in traces or ()]


def telemetry_options(
    stream: str, profile: str | None, network: str | None, key: Path | None
) -> dict[str, str]:
    """Return the source's options for all that is stored of a telemetry stream."""
    access = access_of(profile, network, key)
    [name] = full_names(access, [stream])
    return {**access, "subscribe": name, "startingOffsets": "earliest"}


@contextmanager
def staged(
    spark: "SparkSession",
    traces: Sequence[str],
    options: dict[str, str],
    run: str | None,
    steps: Steps,
) -> "Iterator[DataFrame]":
    """Read what is no table yet once, into a folder that is there while its tables are made."""
    from pyspark import StorageLevel

    from anabranch.spark import telemetry as pipeline

    steps("reading", 0.0)
    if options:
        records = pipeline.read_stream(spark, options, run)
    else:
        records = pipeline.read_records(spark, traces, run)
        if pipeline.are_columns(traces):
            yield records
            return
    if not str(spark.sparkContext.master).startswith("local"):  # others cannot see our folders
        yield records.persist(StorageLevel.DISK_ONLY)
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-pipeline-") as folder:
        yield pipeline.stage(records, folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a job as a program; the arguments are those after `anabranch pipeline`."""
    app(args=None if argv is None else list(argv), prog_name="anabranch pipeline")


if __name__ == "__main__":
    main()
