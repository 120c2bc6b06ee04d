"""Processes of tests get default signals and end with their test."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import processes
from support.processes import Watch, child, completed, running
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

# It starts a process that leaves its group, and ends before it.
ORPHAN = """
from subprocess import DEVNULL, Popen
print(Popen(["sleep", "600"], stdout=DEVNULL, stderr=DEVNULL, start_new_session=True).pid)
"""
SIGNALS = """
import signal, subprocess, sys
from support.processes import restore_signals
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts with &
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
restore_signals()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
look = "import signal; print(*(signal.getsignal(n) for n in (2, 3)))"
print(subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout)
"""


def lives(pid: int) -> bool:
    return any(seen.pid == pid for seen in running())


def test_restore_signals_in_the_background_gives_children_default_ones() -> None:
    tests = str(Path(__file__).parents[1])
    paths = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = completed([sys.executable, "-c", SIGNALS], env=environment, text=True)
    assert done.stderr == ""
    found = done.stdout.split()
    assert found[:2] == ["<built-in", "function"]  # default_int_handler
    assert found[-1] in ("Handlers.SIG_DFL", "0")


def test_child_ends_with_its_context_and_its_group_with_it() -> None:
    command = "sleep 600 & echo $!; wait"
    with child(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        inner = int(process.stdout.readline())
        assert lives(inner)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not lives(inner), "the end of the group")


def test_child_that_says_nothing_is_killed_after_its_time() -> None:
    with child(["sleep", "600"], 0.01, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == ""


def test_completed_returns_what_a_process_says() -> None:
    done = completed(["sh", "-c", "cat; echo bad >&2; exit 3"], input="given", text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "bad\n")


def test_watch_finds_and_ends_what_a_test_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processes.MARK, "")  # set by the watch, and put back
    monkeypatch.setattr(processes, "ENDING_S", 0.01)
    watch = Watch()
    watch.begin()
    with child(["sleep", "600"]) as before:
        watch.begin()  # as when a fixture of many tests has started it
        orphan = int(completed([sys.executable, "-c", ORPHAN]).stdout)
        assert lives(orphan)
        [left] = watch.left()
        assert left == f"{orphan} sleep 600"
        wait_until(lambda: not lives(orphan), "the end of the orphan")
        assert before.poll() is None
        assert watch.left() == []


def test_watch_of_a_test_that_ends_its_processes_finds_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(processes.MARK, "")
    watch = Watch()
    watch.begin()
    completed(["true"])
    assert watch.left() == []
