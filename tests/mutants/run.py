"""Tries every mutant, or those that are named: `python tests/mutants/run.py [NAME ...]`.

    python tests/mutants/run.py [--workers 2] [--seconds N] [--json] [PART OF A NAME ...]

First the tests that are named must pass as the tree is. Then each mutant is applied to a copy of
src/, and its tests must fail, with its scenario if it has one. One line, or one JSON object, for
each mutant that is not caught; the exit code is 1 if there is any. `--seconds` bounds the time: the
mutants are then taken in an order that the commit decides.
"""

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.progress import Progress

from mutants.mutation import ROOT, Mutant, in_turn
from mutants.table import MUTANTS
from mutants.trial import CAUGHT, Copy, Verdict

AT_ONCE = 10  # tests in one process, when they are to pass


def commit() -> str:
    """Return the commit of the tree; nothing where git does not know it."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def tried(
    mutants: Sequence[Mutant], workers: int, seconds: float | None
) -> Iterator[tuple[Mutant, Verdict]]:
    """Try mutants until all are done, or the time is over."""
    until = None if seconds is None else time.monotonic() + seconds
    with (
        tempfile.TemporaryDirectory(prefix="anabranch-mutants-") as folder,
        ThreadPoolExecutor(workers) as pool,
    ):
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(workers):
            place = Path(folder, str(number))
            place.mkdir()
            copies.put(Copy(place))

        def try_one(mutant: Mutant) -> Verdict | None:
            if until is not None and time.monotonic() >= until:
                return None
            copy = copies.get()
            try:
                return copy.try_out(mutant)
            finally:
                copies.put(copy)

        tasks = {pool.submit(try_one, mutant): mutant for mutant in mutants}
        for task in as_completed(tasks):
            if (verdict := task.result()) is not None:
                yield tasks[task], verdict


def failing(mutants: Sequence[Mutant]) -> str:
    """Return what goes wrong if a test fails as the tree is: then it would prove nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="anabranch-mutants-") as folder:
        copy = Copy(Path(folder))
        for at in range(0, len(tests), AT_ONCE):
            some = tests[at : at + AT_ONCE]
            try:
                done = copy.run_tests(some)
            except subprocess.TimeoutExpired:
                return f"one of these does not end: {', '.join(some)}"
            if done.returncode:
                return (done.stdout + done.stderr)[-2000:]
    return ""


def main() -> int:
    """Try them, and say which were not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only mutants whose name holds one of these")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="begin none after so long")
    parser.add_argument("--json", action="store_true", help="one JSON object for each mutant")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    if options.seconds is not None:
        chosen = in_turn(chosen, commit())
    elif problem := failing(chosen):
        print(f"mutants: these tests fail without any mutant:\n{problem}", file=sys.stderr)
        return 1
    began, outcomes = time.monotonic(), list[str]()
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("mutants", total=len(chosen))
        for mutant, verdict in tried(chosen, options.workers, options.seconds):
            outcomes.append(verdict.outcome)
            bar.advance(task)
            if options.json:
                row = {"mutant": mutant.name, "place": mutant.place, **verdict._asdict()}
                print(json.dumps(row), flush=True)
            elif verdict.outcome != CAUGHT:
                print(f"{verdict.outcome}: {mutant.name} ({mutant.place}): {verdict.why}")
    caught = outcomes.count(CAUGHT)
    if not options.json:
        seconds = time.monotonic() - began
        print(f"mutants: {caught} of {len(outcomes)} caught, {seconds:.0f} s")
    return int(caught < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
