"""Compares two trees by a benchmark: both measure in turns, and the ratios of the pairs decide.

    python benchmarks/turns.py OLD NEW -- flood.py --only "anabranch" --processes 1

OLD and NEW are folders of the project, or git revisions, for which a worktree is made and removed.
After `--` stand a file of benchmarks/ and its arguments. Each tree runs its own copy of that file
with its own src/, on this interpreter, at least 11 times each: old new, new old, old new, ... so
that a machine that drifts does so for both. Rows are matched by what they name, and each known
figure (benchmarks/turning/figures.py) of a pair is one ratio; above 1 is worse, also for figures
of which more is better. The interval of the median ratio comes from binomial order statistics and
assumes no distribution (benchmarks/turning/ratios.py).

Slower is a figure whose whole interval lies above --limit: then the exit code is 1.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from turning.figures import Name, Row, directions, figures_of, more_is_better, name_of
from turning.ratios import MIN_PAIRS, interval, slowdown
from turning.trees import measured, tree

LIMIT = 1.03

Pair = tuple[list[Row], list[Row]]  # of the old tree and of the new one


def pairs_of(trees: tuple[Path, Path], command: Sequence[str], count: int) -> Iterator[Pair]:
    """Let both trees measure in turns, and begin with the other one each time."""
    for at in range(count):
        order = (0, 1) if at % 2 == 0 else (1, 0)
        rows = {which: measured(trees[which], command) for which in order}
        yield rows[0], rows[1]


def compared(
    pairs: Sequence[Pair], file: str, chosen: dict[str, bool] | None, limit: float
) -> list[Row]:
    """Return a row for each figure that both trees have."""
    ratios: dict[tuple[Name, str], list[float]] = {}
    for old_rows, new_rows in pairs:
        olds = {name_of(row): figures_of(row, file, chosen) for row in old_rows}
        for row in new_rows:
            old, name = olds.get(name_of(row), {}), name_of(row)
            for key, new in figures_of(row, file, chosen).items():
                more = chosen[key] if chosen is not None else more_is_better(file, key)
                if key in old:
                    ratios.setdefault((name, key), []).append(slowdown(old[key], new, bool(more)))
    found: list[Row] = []
    for (name, key), of_pairs in ratios.items():
        if len(of_pairs) < len(pairs):
            print(f"{key} of {dict(name)} was missing in some runs", file=sys.stderr)
        if len(of_pairs) < MIN_PAIRS:
            continue
        seen = interval(of_pairs)
        limits = {"low": seen.low, "ratio": seen.median, "high": seen.high}
        found.append(
            {**dict(name), "key": key, "pairs": len(of_pairs)}
            | {which: round(value, 4) for which, value in limits.items()}
            | {"coverage": round(seen.coverage, 4), "slower": seen.low > limit}
        )
    return found


def show(row: Row, limit: float) -> None:
    """Print a figure for people."""
    known = {"key", "pairs", "low", "ratio", "high", "coverage", "slower"}
    named = [(key, value) for key, value in row.items() if key not in known]
    name = ", ".join(v if isinstance(v, str) else f"{k} {v}" for k, v in named)
    verdict = f"SLOWER than {limit}" if row["slower"] else ""
    figures = f"{row['ratio']:>8.3f}  {row['low']:>7.3f} to {row['high']:<7.3f}"
    print(f"{name[:44]:44}  {row['key']:27} {figures} {verdict}".rstrip())


def measure_in_turns(options: argparse.Namespace) -> list[Row]:
    """Run all pairs in both trees; return what they came to."""
    file = options.command[0]
    chosen = directions(file, options.key)
    console = Console(stderr=True)
    with (
        contextlib.ExitStack() as stack,
        Progress(console=console, disable=not console.is_terminal) as bar,
    ):
        trees = [stack.enter_context(tree(name)) for name in (options.old, options.new)]
        if absent := [str(t) for t in trees if not (t / "benchmarks" / file).is_file()]:
            raise ValueError(f"there is no benchmarks/{file} in {' and '.join(absent)}")
        pairs = pairs_of((trees[0], trees[1]), options.command, options.pairs)
        pairs = bar.track(pairs, options.pairs, description=f"{file}, pairs")
        return compared(list(pairs), file, chosen, options.limit)


def parse() -> argparse.Namespace:
    """Take what stands before `--` as options and the rest as the benchmark."""
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a folder of the project or a git revision")
    parser.add_argument("new", help="the same")
    parser.add_argument("--pairs", type=int, default=MIN_PAIRS, help="11 or more")
    parser.add_argument("--limit", type=float, default=LIMIT, help="slower is what lies above")
    parser.add_argument("--key", action="append", default=[], help="only this figure; key=more")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments[:at])
    options.command = [text for text in arguments[at + 1 :] if text != "--json"]
    if not options.command:
        parser.error("name a benchmark after --, for example: -- flood.py --processes 1")
    if options.pairs < MIN_PAIRS:
        parser.error(f"--pairs {options.pairs}: an interval needs {MIN_PAIRS} pairs or more")
    return options


def main() -> int:
    """Compare, print, and say whether anything is slower."""
    options = parse()
    try:
        rows = measure_in_turns(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not rows:
        print("error: no figure is in both trees: choose one with --key", file=sys.stderr)
        return 2
    if not options.json:
        print(f"{'row':44}  {'figure':27} {'new/old':>8}  95% interval; above 1 is worse")
    for row in rows:
        print(json.dumps(row)) if options.json else show(row, options.limit)
    return int(any(row["slower"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
