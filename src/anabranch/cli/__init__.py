"""The command line: one file per group of verbs."""

import typer

from anabranch.cli import lab, simulate

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Anabranch: decentralised publish-subscribe for real-time data.",
)
app.add_typer(lab.app, name="lab")
app.command("simulate")(simulate.simulate)


def main() -> None:
    """Run the command line."""
    app()
