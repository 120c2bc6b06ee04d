"""Runs many random fault scenarios: `python tests/soak.py --seeds 2000`; see `make soak`.

With `--trust` the networks have a registry, private streams, and those who do not keep to it;
with `--storage` they store their streams, storage nodes are killed under load, and their disks rot
and forget; with `--calm` nothing goes wrong, and nothing may be repaired.
"""

import argparse
import multiprocessing
import sys
import time
from functools import partial

from rich.console import Console
from rich.progress import Progress

from anabranch.sim.random_scenario import (
    random_calm_scenario,
    random_scenario,
    random_storage_scenario,
    random_trust_scenario,
)
from anabranch.sim.scenario import Run

KINDS = {
    "random": random_scenario,
    "random-trust": random_trust_scenario,
    "random-storage": random_storage_scenario,
    "random-calm": random_calm_scenario,
}


def run_seed(kind: str, seed: int) -> tuple[int, int, list[str]]:
    """Run the scenario of one seed; return its events and what went wrong."""
    try:
        run = Run(KINDS[kind](seed), seed).go()
    except Exception as error:
        return seed, 0, [f"{type(error).__name__}: {error}"]
    return seed, run.sim.handled, run.checker.violations


def main() -> int:
    """Run the seeds on all cores; print each that fails, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=100_000)
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--storage", action="store_true")
    parser.add_argument("--calm", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    kind = next(
        (f"random-{each}" for each in ("storage", "trust", "calm") if getattr(options, each)),
        "random",
    )
    print(f"soak: {kind}, seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    failed, events, began = 0, 0, time.perf_counter()
    console = Console(stderr=True)
    with (
        multiprocessing.Pool() as pool,
        Progress(console=console, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("soak", total=len(seeds))
        run = partial(run_seed, kind)
        for seed, handled, violations in pool.imap_unordered(run, seeds, chunksize=4):
            events += handled
            bar.advance(task)
            if violations:
                failed += 1
                print(f"seed {seed}: {violations[0]} ({len(violations)} in all)", flush=True)
                print(f"    to see it: anabranch simulate {kind} --seed {seed}", flush=True)
    seconds = time.perf_counter() - began
    print(f"soak: {len(seeds)} seeds, {events} events, {seconds:.0f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
