"""The trees that are compared, and one run of a benchmark in a tree."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from turning.figures import Row


@contextmanager
def tree(name: str) -> Iterator[Path]:
    """Give the folder of a tree; a git revision gets a worktree of its own for a while."""
    if Path(name, "src", "anabranch").is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-turns-") as folder:
        place = str(Path(folder, "tree"))
        added = _git("worktree", "add", "--detach", "--quiet", place, name)
        if added.returncode:
            raise ValueError(
                f"{name} is neither a folder with src/anabranch nor a git revision: "
                f"{added.stderr.strip().splitlines()[-1]}"
            )
        try:
            yield Path(place)
        finally:
            _git("worktree", "remove", "--force", place)


def _git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


def measured(place: Path, command: Sequence[str]) -> list[Row]:
    """Run a benchmark of this tree; return its rows.

    A benchmark may end with an error because it is beyond a bar of its own: its rows count.
    """
    paths = [str(place / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, str(place / "benchmarks" / command[0]), *command[1:], "--json"],
        cwd=place,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the processes of a benchmark end with it
    )
    try:
        out, err = process.communicate()
    finally:
        _end_group(process)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if not rows:
        why = (err.strip().splitlines() or ["it printed nothing"])[-1]
        raise ValueError(f"{command[0]} of {place} has no rows (exit code {process.poll()}): {why}")
    return rows


def _end_group(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
