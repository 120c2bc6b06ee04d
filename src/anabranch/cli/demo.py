"""`anabranch demo`: a network of processes, a city's vehicles, and some of it killed on the way."""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from anabranch.cli.console import fail, handled, print_json
from anabranch.cli.options import AsJson
from anabranch.core.ids import StreamPart
from anabranch.live.client import connect
from anabranch.live.errors import AnabranchError
from anabranch.live.load import Counted, all_delivered
from anabranch.live.local import Child, LocalNetwork
from anabranch.live.loop import run
from anabranch.traces.files import TraceWriter
from anabranch.traces.schema import Stopped, Subscribed

OFFERED_PER_S = 653.0  # what paper 000 measured of Helsinki's public transport
TRACKERS = 2
PATH = "city/vehicles"
PAGE = Path("figures/demo-report.html")
MAX_TRACE_RECORDS = 2_000_000  # of all nodes together; the half minute needs a third of it
PIPELINE_S = 180.0  # how long the pipeline may take

Json = dict[str, Any]


class Report(msgspec.Struct):
    """One run of the demonstration."""

    node_processes: int
    trackers: int
    killed_nodes: int
    killed_trackers: int
    seconds: float
    offered_per_s: float
    published: int
    published_per_s: float
    delivered: int
    lost_at_nodes_alive_throughout: int
    delay_p50_ms: float
    delay_p99_ms: float
    duplicates_per_node_per_message: float
    predicted_mean_delay_ms: float | None
    measured_mean_delay_ms: float
    cpu_us_per_delivery: float
    report: str | None = None  # the page that the pipeline made of the traces


class Stage(NamedTuple):
    """Where the demonstration is seen."""

    show: Callable[[str, float, str], None]  # what happens, how far it is, and a note
    tell: Callable[[str], None]  # what has happened


@handled()
def demo(
    nodes: Annotated[int, typer.Option(help="Node processes, the publisher included.")] = 12,
    seconds: Annotated[float, typer.Option(help="How long the vehicles drive.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Which day in the city.")] = 1,
    out: Annotated[Path, typer.Option(help="The page that is made of the nodes' traces.")] = PAGE,
    no_report: Annotated[bool, typer.Option("--no-report", help="Make no page.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a network for half a minute, kill a tracker and two nodes, and count what arrives.

    The nodes leave traces, of which the pipeline on Spark makes a page of tables and figures.
    """
    if not 5 <= nodes <= 64 or seconds < 5:
        fail("give 5 to 64 nodes and at least 5 seconds")
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=as_json or not console.is_terminal,
    ) as bar:
        task = bar.add_task("starting", total=1.0, note="")

        def show(what: str, done: float, note: str) -> None:
            bar.update(task, description=what, completed=done, note=note)

        def tell(event: str) -> None:
            if not as_json:
                console.print(f"  {event}", highlight=False)

        page = None if no_report else out
        report = run(_demo(nodes, seconds, seed, page, Stage(show, tell)))
    print_json(msgspec.structs.asdict(report)) if as_json else _show(report)
    if report.lost_at_nodes_alive_throughout:
        raise typer.Exit(1)


async def _demo(nodes: int, seconds: float, seed: int, page: Path | None, stage: Stage) -> Report:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-demo-")))
        traces = None if page is None else folder / "traces"
        if traces is not None:
            traces.mkdir()
        local = LocalNetwork(folder)
        stack.push_async_callback(local.stop)
        await local.start(
            TRACKERS, 0, progress=lambda done: stage.show("starting trackers", done, "")
        )
        async with connect(local.address, key=local.owner_key) as network:
            stream = (await network.create_stream(PATH)).id
            trackers = await network.trackers()
            settings = network.node.settings(StreamPart(stream, 0))
            assert settings is not None
            first = settings.trackers[0].node
        for index in range(nodes - 1):
            more = ["--interval", "0.5", *_tracing(traces, f"node-{index}", nodes)]
            await local.add_node([stream], more)
            stage.show("starting nodes", (index + 1) / (nodes - 1), f"{index + 1} of {nodes - 1}")
        stage.tell(f"{TRACKERS} trackers and {nodes - 1} nodes run; the publisher makes {nodes}")
        show = _Show(local, stream, trackers, first, seconds, seed, traces, stage)
        report = await show.run()
        if page is None or traces is None:
            return report
        await local.stop()  # Spark can use the cores
        stage.show("making the report", 1.0, "")
        return await _make_page(report, traces, page, stage.tell)


def _tracing(traces: Path | None, name: str, nodes: int) -> list[str]:
    if traces is None:
        return []
    limit = MAX_TRACE_RECORDS // nodes
    return ["--trace", str(traces / f"{name}.jsonl"), "--trace-limit", str(limit)]


async def _make_page(
    report: Report, traces: Path, page: Path, tell: Callable[[str], None]
) -> Report:
    """Let the pipeline make a page of the traces; without it the demonstration is no failure."""
    pipeline = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "anabranch", "pipeline", "report", str(traces)),
        *("--run", "demo", "--out", str(page)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, words = await asyncio.wait_for(pipeline.communicate(), PIPELINE_S)
    except TimeoutError:
        tell(f"no report: the pipeline took more than {PIPELINE_S:.0f} s")
        return report
    finally:
        if pipeline.returncode is None:
            pipeline.kill()
            await pipeline.wait()
    if pipeline.returncode:
        last = words.decode(errors="replace").strip().rpartition("\n")[2]
        tell(f"no report: {last.removeprefix('error: ')}")
        return report
    return msgspec.structs.replace(report, report=str(page))


class _Show:
    """The half minute itself."""

    def __init__(
        self,
        local: LocalNetwork,
        stream: str,
        trackers: list[dict[str, str]],
        first_tracker: bytes,
        seconds: float,
        seed: int,
        traces: Path | None,
        stage: Stage,
    ) -> None:
        self._local = local
        self._stream = stream
        self._part = f"{stream}#0"
        self._trackers = trackers
        self._first = first_tracker
        self._seconds = seconds
        self._seed = seed
        self._traces = traces
        self._witness = TraceWriter(None if traces is None else traces / "demo.jsonl")
        self._show, self._tell = stage
        self._predicted: Json | None = None

    async def run(self) -> Report:
        """Publish, kill, count."""
        # The nodes only carry the stream, and who is killed says nothing more: the trace learns
        # from us who should have had the messages, and until when.
        for node in self._local.nodes:
            self._witness.write(Subscribed(time.time(), node.ready["node"], self._part))
        before = Counted(self._local.nodes, self._part)
        began = time.perf_counter()
        publishing = asyncio.create_task(self._publish())
        events = [
            (self._seconds * 0.33, self._kill_tracker),
            (self._seconds * 0.5, self._kill_node),
            (self._seconds * 0.66, self._kill_node),
            (self._seconds * 0.9, self._predict),
        ]
        while not publishing.done():
            elapsed = time.perf_counter() - began
            while events and events[0][0] <= elapsed:
                await events.pop(0)[1]()
            delivered = Counted(self._alive(), self._part).delivered
            self._show("publishing", min(1.0, elapsed / self._seconds), f"{delivered:,} delivered")
            await asyncio.sleep(0.1)
        published = await publishing
        report = await self._count(published, before)
        self._witness.close()
        return report

    def _alive(self) -> list[Child]:
        return [node for node in self._local.nodes if node.alive]

    async def _publish(self) -> Json:
        """Run what a user would: anabranch mock vehicles | anabranch publish STREAM."""
        reading, writing = os.pipe()
        base = (sys.executable, "-m", "anabranch")
        mock = await asyncio.create_subprocess_exec(
            *(*base, "mock", "vehicles", "--seconds", str(self._seconds)),
            *("--seed", str(self._seed)),
            stdout=writing,
        )
        publisher = await asyncio.create_subprocess_exec(
            *(*base, "publish", self._stream, "--json", "--address", self._local.address),
            *("--key", str(self._local.owner_key)),
            *_tracing(self._traces, "publisher", len(self._local.nodes) + 1),
            stdin=reading,
            stdout=asyncio.subprocess.PIPE,
        )
        os.close(reading)
        os.close(writing)
        said, _ = await publisher.communicate()
        await mock.wait()
        lines = said.decode().splitlines()
        if publisher.returncode not in (0, 1) or not lines:
            raise AnabranchError("the publisher failed; its message stands above")
        return dict(json.loads(lines[-1]))

    # --- What happens on the way ----------------------------------------------------------

    async def _kill_tracker(self) -> None:
        """Kill the tracker that the stream belongs to: its nodes turn to the other."""
        ours = "0x" + self._first.hex()
        tracker = next(t for t in self._local.trackers if t.ready["node"] == ours)
        await tracker.kill()
        self._tell(f"killed the stream's tracker ({ours[:10]})")

    async def _kill_node(self) -> None:
        victim = self._alive()[0]
        self._witness.write(Stopped(time.time(), victim.ready["node"]))
        await victim.kill()
        self._tell(f"killed a node ({victim.ready['node'][:10]})")

    async def _predict(self) -> None:
        """Ask the tracker that is left what delay it expects from the publisher to the others."""
        from anabranch.live.pages import Pages  # its web client takes long to load

        known = {node.ready["node"] for node in self._local.nodes}
        async with Pages([entry["http"] for entry in self._trackers]) as pages:
            parts = await pages.parts(stream=self._stream)
            publishers = [node for node in parts[0]["topology"] if node not in known]
            if publishers:
                self._predicted = await pages.prediction(self._stream, source=publishers[0])

    # --- The end --------------------------------------------------------------------------

    async def _count(self, publisher: Json, before: Counted) -> Report:
        alive = self._alive()
        published = int(publisher["published"])
        await all_delivered(alive, self._part, [published] * len(alive))
        for node in alive:
            await node.stop()
        after = Counted(alive, self._part)
        everybody = Counted(self._local.nodes, self._part)
        cpu_us = 1000 * (everybody.cpu_ms - before.cpu_ms + int(publisher["cpu_ms"]))
        seconds = float(publisher["seconds"])
        return Report(
            node_processes=len(self._local.nodes) + 1,
            trackers=len(self._local.trackers),
            killed_nodes=len(self._local.nodes) - len(alive),
            killed_trackers=sum(1 for tracker in self._local.trackers if not tracker.alive),
            seconds=round(seconds, 1),
            offered_per_s=OFFERED_PER_S,
            published=published,
            published_per_s=round(published / seconds, 1),
            delivered=everybody.delivered,
            lost_at_nodes_alive_throughout=sum(max(0, published - have) for have in after.each),
            delay_p50_ms=after.delays.percentile_us(50) / 1000,
            delay_p99_ms=after.delays.percentile_us(99) / 1000,
            duplicates_per_node_per_message=round(
                after.duplicates / max(1, len(alive)) / max(1, published), 3
            ),
            predicted_mean_delay_ms=self._predicted["mean_ms"] if self._predicted else None,
            measured_mean_delay_ms=after.delays.mean_us / 1000,
            cpu_us_per_delivery=round(cpu_us / max(1, everybody.delivered), 1),
        )


def _show(report: Report) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    rate = f"{report.published_per_s:.0f} a second for {report.seconds:.0f} s"
    if report.published_per_s < 0.95 * report.offered_per_s:
        rate += f"; {report.offered_per_s:.0f} were offered: this machine carries no more"
    table.add_row("published", f"{report.published:,} ({rate})")
    table.add_row("delivered", f"{report.delivered:,}")
    table.add_row("lost at nodes alive throughout", str(report.lost_at_nodes_alive_throughout))
    table.add_row("delay", f"{report.delay_p50_ms:.1f} ms p50, {report.delay_p99_ms:.1f} ms p99")
    copies = f"{report.duplicates_per_node_per_message:.2f} frames per node per message"
    table.add_row("duplicates", copies)
    predicted = report.predicted_mean_delay_ms
    forecast = "not predicted" if predicted is None else f"{predicted:.1f} ms predicted"
    measured = f"{report.measured_mean_delay_ms:.1f} ms measured"
    table.add_row("mean delay", f"{forecast}, {measured}")
    table.add_row("cpu", f"{report.cpu_us_per_delivery:.0f} µs per delivery, all nodes")
    killed = f"{report.killed_nodes} of {report.node_processes} nodes"
    table.add_row("killed on the way", f"{killed}, {report.killed_trackers} of 2 trackers")
    if report.report is not None:
        table.add_row("report", report.report)
    console = Console()
    console.print(table)
    console.print(
        "Try next, each in its own terminal:\n"
        "  .venv/bin/anabranch up                          # a network of your own\n"
        "  .venv/bin/anabranch stream create city/vehicles\n"
        "  .venv/bin/anabranch subscribe city/vehicles\n"
        "  .venv/bin/anabranch mock vehicles | .venv/bin/anabranch publish city/vehicles\n"
        "  .venv/bin/anabranch top                         # watch it",
        highlight=False,
        soft_wrap=True,
    )
