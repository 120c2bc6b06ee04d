"""The command line: one file per group of verbs."""

import typer

from anabranch.cli import (
    bench,
    demo,
    key,
    lab,
    messages,
    mock,
    network,
    pipeline,
    processes,
    profile,
    reading,
    simulate,
    storage,
    stream,
    topology,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Anabranch: decentralised publish-subscribe for real-time data.",
)
app.command("up")(processes.up)
app.command("demo")(demo.demo)
app.command("publish")(messages.publish)
app.command("subscribe")(reading.subscribe)
app.command("resend")(reading.resend)
app.add_typer(stream.app, name="stream")
app.add_typer(key.app, name="key")
app.add_typer(profile.app, name="profile")
app.add_typer(network.app, name="network")
app.command("topology")(topology.topology)
app.command("top")(topology.top)
app.command("node")(processes.node)
app.command("tracker")(processes.tracker)
app.add_typer(storage.app, name="storage")
app.command("bench")(bench.bench)
app.add_typer(mock.app, name="mock")
app.command("simulate")(simulate.simulate)
app.add_typer(lab.app, name="lab")
app.add_typer(pipeline.app, name="pipeline")


def main() -> None:
    """Run the command line."""
    app()
