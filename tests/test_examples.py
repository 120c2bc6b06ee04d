"""The examples run, and the README shows two of them as they are."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import child

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "history": "the last two: [{'kWh': 3}, {'kWh': 4}]\n{'kWh': 4}\n{'kWh': 'new'}",
    "hello": "{'id': 7, 'speed': 12.5} from 0x",
    "kill_nodes": "lost at nodes alive throughout: 0\nrules broken: []",
    "speed_map": '"metres_per_s":',
    "many_sensors": "messages per partition: {0: 250, 1: 250, 2: 250, 3: 250}",
    "trams": "{'id': 7, 'speed': 12.5}",
    "watch_a_flood": "ms",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A network as `anabranch up` makes it; the profile that it sets is in the environment."""
    folder = tmp_path_factory.mktemp("up")
    environment = {**os.environ, "ANABRANCH_CONFIG": str(folder / "config.toml")}
    with child(
        f"{sys.executable} -m anabranch up --nodes 1 --port 0 --json --with-parent".split(),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stdout is not None
        assert json.loads(up.stdout.readline())["event"] == "ready"
        yield environment
        up.terminate()


def prepare(example: Path, environment: dict[str, str]) -> None:
    """Run the commands that an example asks for; those that wait for time do so for less of it."""
    for line in example.read_text().splitlines():
        if line.startswith("    anabranch "):
            command = line.strip().replace("--seconds 15", "--seconds 9 --rate 50")
            command = command.replace("anabranch ", f"{sys.executable} -m anabranch ")
            subprocess.run(command, shell=True, check=True, env=environment, capture_output=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, environment: dict[str, str], tmp_path: Path) -> None:
    prepare(example, environment)
    result = subprocess.run(
        [sys.executable, example],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    assert result.stderr == ""
    assert SAYS[example.stem] in result.stdout
    if example.stem == "watch_a_flood":
        assert len(result.stdout.splitlines()) == 12


@pytest.mark.parametrize("example", ["trams", "kill_nodes"])
def test_the_readme_shows_an_example_that_runs(example: str) -> None:
    readme = (ROOT / "README.md").read_text()
    code = (ROOT / "examples" / f"{example}.py").read_text().split('"""\n\n', 1)[1]
    assert code in readme
