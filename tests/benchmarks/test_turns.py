"""benchmarks/turns.py: its statistics, and whole comparisons of small trees."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from turning.figures import directions, figures_of, name_of
from turning.ratios import interval, rank, slowdown

TURNS = Path(__file__).resolve().parents[2] / "benchmarks" / "turns.py"
# Its figures are those of the tree's src/, so that the trees differ by that alone.
BENCHMARK = """
import json, sys
from anabranch.figures import per_s, us
assert "--json" in sys.argv
print(json.dumps({"system": "ours", "processes": 1, "msg_s": per_s, "cpu_us_per_delivery": us}))
print(json.dumps({"system": "bare", "processes": 1, "msg_s": 7, "bar": 3}))
with open("../order.txt", "a") as file:
    file.write(sys.argv[1] + " " + __file__.split("/")[-3] + "\\n")
"""


@pytest.mark.parametrize(("count", "expected"), [(6, 1), (11, 2), (12, 3), (20, 6), (100, 40)])
def test_rank_of_an_interval_equals_published_tables(count: int, expected: int) -> None:
    assert rank(count) == expected


def test_rank_of_too_few_values_is_refused() -> None:
    with pytest.raises(ValueError, match="take 6 or more"):
        rank(5)


def test_interval_of_eleven_values_leaves_out_one_at_each_end() -> None:
    found = interval([1.1, 9.0, 1.2, 1.3, 1.0, 1.4, 1.5, 0.1, 1.6, 1.7, 1.8])
    assert (found.low, found.median, found.high) == (1.0, 1.4, 1.8)
    assert found.coverage == pytest.approx(1 - 24 / 2048)


@pytest.mark.parametrize("count", [11, 15, 25])
def test_interval_of_skewed_values_holds_the_median_as_often_as_said(count: int) -> None:
    rng, held, runs = random.Random(count), 0, 2_000
    for _ in range(runs):
        found = interval([rng.expovariate(1.0) for _ in range(count)])
        held += found.low <= math.log(2) <= found.high
    assert held / runs > 0.94


@pytest.mark.parametrize(
    ("old", "new", "more", "expected"),
    [(100, 50, True, 2.0), (100, 50, False, 0.5), (0, 0, True, 1.0), (0, 3, False, math.inf)],
)
def test_slowdown_above_one_is_worse(old: float, new: float, more: bool, expected: float) -> None:
    assert slowdown(old, new, more) == expected


def test_figures_of_a_row_are_the_known_ones_of_its_file() -> None:
    row = {
        "row": "append",
        "messages_per_frame": 1,
        "messages_per_s": 5,
        "ratio": 0.5,
        "bar_per_s": 9,
    }
    assert name_of(row) == (("row", "append"), ("messages_per_frame", 1))
    assert figures_of(row, "storage.py", None) == {"messages_per_s": 5.0, "ratio": 0.5}
    assert figures_of(row, "unknown.py", None) == {"messages_per_s": 5.0}
    assert figures_of(row, "storage.py", {"bar_per_s": True}) == {"bar_per_s": 9.0}


def test_directions_of_an_unknown_key_must_be_said() -> None:
    assert directions("storage.py", ["ratio", "odd=less"]) == {"ratio": True, "odd": False}
    assert directions("peer.py", ["ratio"]) == {"ratio": False}
    with pytest.raises(ValueError, match="--key odd=more or --key odd=less"):
        directions("storage.py", ["odd"])


def make_tree(folder: Path, per_s: int, us: float) -> Path:
    for place, text in (
        ("src/anabranch/__init__.py", ""),
        ("src/anabranch/figures.py", f"per_s, us = {per_s}, {us}"),
        ("benchmarks/small.py", BENCHMARK),
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    return folder


def turns(*arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(TURNS), *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_turns_of_a_slower_tree_alternate_and_fail(tmp_path: Path) -> None:
    old, new = make_tree(tmp_path / "old", 100, 2.0), make_tree(tmp_path / "new", 80, 2.0)
    done = turns(str(old), str(new), "--json", "--", "small.py", "word")
    assert (done.returncode, done.stderr) == (1, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["system"], row["key"], row["slower"]) for row in rows] == [
        ("ours", "msg_s", True),
        ("ours", "cpu_us_per_delivery", False),
        ("bare", "msg_s", False),
    ]
    assert (rows[0]["low"], rows[0]["ratio"], rows[0]["high"]) == (1.25, 1.25, 1.25)
    order = [line.split()[1] for line in (tmp_path / "order.txt").read_text().splitlines()]
    assert order == (["old", "new", "new", "old"] * 6)[:22]


def test_turns_below_the_limit_succeed_and_print_a_table(tmp_path: Path) -> None:
    old, new = make_tree(tmp_path / "old", 100, 2.0), make_tree(tmp_path / "new", 80, 1.0)
    limits = ("--limit", "1.3", "--key", "msg_s")
    done = turns(str(old), str(new), *limits, "--", "small.py", "word")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ours, processes 1" in done.stdout
    assert "cpu_us_per_delivery" not in done.stdout


def test_turns_of_revisions_make_worktrees_and_remove_them(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", 100, 2.0)
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")

    def git(*arguments: str) -> str:
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    make_tree(tree, 50, 2.0)
    git("commit", "-qam", "two")
    done = turns("HEAD~1", "HEAD", "--key", "msg_s", "--", "small.py", "word", cwd=tree)
    assert done.returncode == 1, done.stderr
    assert "2.000" in done.stdout
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("nowhere", "nowhere", "--", "small.py"), "neither a folder with src/anabranch nor"),
        (("old", "old", "--", "absent.py"), "there is no benchmarks/absent.py"),
        (("old", "old", "--key", "odd", "--", "small.py", "w"), "--key odd=more"),
        (("old", "old", "--pairs", "10", "--", "small.py"), "needs 11 pairs or more"),
        (("old", "old"), "name a benchmark after --"),
        (("old", "old", "--", "broken.py"), "has no rows (exit code 1): KeyError: 7"),
    ],
)
def test_turns_with_wrong_input_say_what_to_do(
    tmp_path: Path, arguments: tuple[str, ...], advice: str
) -> None:
    tree = make_tree(tmp_path / "old", 100, 2.0)
    (tree / "benchmarks" / "broken.py").write_text("raise KeyError(7)")
    done = turns(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert advice in done.stderr
