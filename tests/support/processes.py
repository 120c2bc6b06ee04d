"""The processes of tests: they have default signals, and none outlives its test.

Every process that a test starts inherits a mark in its environment, or descends from this one. So
those are found, too, whose parent has ended: on Linux, from /proc.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

from support.waiting import Limit, limit, wait_until

PROC = Path("/proc")
MARK = "ANABRANCH_TESTS"
ENDING_S = 10.0  # for processes that end by themselves when their parent has ended


def restore_signals() -> None:
    """Give this process, and all that it starts, the signals of one in the foreground.

    A shell that starts a process in the background lets it ignore those of the keyboard, and what
    is ignored is inherited.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, getattr(signal, "SIGQUIT", signal.SIGTERM)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def child(
    command: Sequence[str], seconds: float | None = None, **options: Any
) -> Iterator["subprocess.Popen[Any]"]:
    """Run a process, alone in its group; with the context the whole group is killed.

    After so many seconds it is killed as well: a test that waits for its words would hang.
    """
    process = subprocess.Popen(command, process_group=0, **options)
    ended = threading.Event()
    if seconds is not None:
        threading.Thread(target=_kill_late, args=(process, seconds, ended), daemon=True).start()
    try:
        yield process
    finally:
        ended.set()
        kill_group(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _kill_late(process: "subprocess.Popen[Any]", seconds: float, ended: threading.Event) -> None:
    until = Limit(seconds)
    while not ended.wait(0.5):
        if until.passed:
            kill_group(process)
            return


def kill_group(process: "subprocess.Popen[Any]") -> None:
    """End a process that is the first of its group, and all others of the group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def completed(
    command: Sequence[str], seconds: float = 60.0, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run a process to its end, in a time that stretches with the load."""
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with child(command, **pipes) as process:
        out, err = process.communicate(given, timeout=limit(seconds))
        return subprocess.CompletedProcess(command, process.returncode, out, err)


class Seen(NamedTuple):
    """A process; its number alone may be used again."""

    pid: int
    began: int


def running() -> dict[Seen, int]:
    """Return every process that runs, and its parent's number, from /proc."""
    found = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            # The name stands in parentheses and may hold anything.
            state, parent, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                found[Seen(int(entry.name), int(rest[17]))] = int(parent)
    return found


class Watch:
    """Knows which processes of ours ran before a test, and ends those that came with it."""

    def __init__(self) -> None:
        value = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._mark = f"{MARK}={value}".encode()
        self._foreign: set[Seen] = set()
        self._known: set[Seen] = set()
        self._newest = ""
        os.environ[MARK] = value

    def begin(self) -> None:
        """Take what runs as the start of a test: it belongs to fixtures of many tests."""
        if self._changed():
            self._known = self._ours()

    def left(self) -> list[str]:
        """Return what this test has started and not ended; wait for what is about to end."""
        if not self._changed() or not self._ours() - self._known:
            return []
        with suppress(AssertionError):
            wait_until(lambda: not self._ours() - self._known, "the end", ENDING_S)
        left = []
        for seen in sorted(self._ours() - self._known):
            left.append(f"{seen.pid} {command_of(seen.pid)}")
            with suppress(ProcessLookupError):
                os.kill(seen.pid, signal.SIGKILL)
        return left

    def _changed(self) -> bool:
        """Tell whether any process was started anywhere since this was asked last."""
        before = self._newest
        with suppress(OSError):
            self._newest = (PROC / "loadavg").read_text().split()[-1]
        return self._newest != before

    def _ours(self) -> set[Seen]:
        """Return our processes, but for those that a process of a fixture has started."""
        everything = running()
        parents = {seen.pid: parent for seen, parent in everything.items()}
        fixtures = lasting() | {seen.pid for seen in self._known & everything.keys()}
        self._foreign &= everything.keys()
        return {
            seen
            for seen in everything.keys() - self._foreign
            if seen in self._known or self._is_ours(seen, parents, fixtures)
        }

    def _is_ours(self, seen: Seen, parents: dict[int, int], fixtures: set[int]) -> bool:
        above, at = set(), seen.pid
        while (at := parents.get(at, 0)) and at not in above:
            above.add(at)
        if seen.pid == os.getpid() or fixtures & (above | {seen.pid}):
            return False
        if os.getpid() in above or self._is_marked(seen.pid):
            return True
        self._foreign.add(seen)
        return False

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def lasting() -> set[int]:
    """Return the processes that libraries start once and keep: they end with this one."""
    found = {getattr(resource_tracker._resource_tracker, "_pid", None)}
    spark = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark")
    gateway = getattr(getattr(spark, "SparkContext", None), "_gateway", None)
    found.add(getattr(getattr(gateway, "proc", None), "pid", None))
    return {pid for pid in found if pid}


def command_of(pid: int) -> str:
    """Return how a process was started, as far as it is known."""
    try:
        text = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    return text.decode(errors="replace").strip()[:200]
