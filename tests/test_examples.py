"""The examples run, and the README shows one of them as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path) -> None:
    result = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    if example.stem == "kill_nodes":
        assert "lost at nodes alive throughout: 0" in result.stdout
        assert "rules broken: []" in result.stdout
    if example.stem == "watch_a_flood":
        assert len(result.stdout.splitlines()) == 12


def test_the_readme_shows_an_example_that_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    code = (ROOT / "examples" / "kill_nodes.py").read_text().split('"""\n\n', 1)[1]
    assert code in readme
