"""Tries a mutant: its tests run against a copy of src/ in which one file is changed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mutants.mutation import ROOT, SOURCES, Mutant, StaleError
from support.processes import completed

LIMIT_S = 240.0
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
CAUGHT, SURVIVED, BROKEN, STALE = "caught", "survived", "broken", "stale"


class Verdict(NamedTuple):
    """What became of a mutant."""

    outcome: str
    why: str


class Copy:
    """A copy of src/ in a folder; one file at a time is changed, and put back."""

    def __init__(self, folder: Path) -> None:
        self.sources = folder / "src"
        shutil.copytree(SOURCES, self.sources, ignore=shutil.ignore_patterns("__pycache__"))
        self._cache = folder / "cache"

    def try_out(self, mutant: Mutant) -> Verdict:
        """Change the file, run the tests and the scenario, and put the file back."""
        file = self.sources / mutant.path
        if not file.is_file():
            return Verdict(STALE, f"{mutant.name}: there is no {mutant.path}")
        source = file.read_text()
        try:
            changed = mutant.applied(source)
        except StaleError as error:
            return Verdict(STALE, str(error))
        try:
            self._write(file, changed)
            verdict = self._tests(mutant)
            if verdict.outcome == CAUGHT and mutant.scenario:
                verdict = self._scenario(mutant)
            return verdict
        finally:
            self._write(file, source)

    def run_tests(self, tests: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run tests against this copy."""
        options = ("-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
        return self._run("-m", "pytest", *options, *tests)

    def _tests(self, mutant: Mutant) -> Verdict:
        try:
            done = self.run_tests(mutant.tests)
        except subprocess.TimeoutExpired:
            return Verdict(BROKEN, f"its tests have not ended after {LIMIT_S:.0f} s")
        failed = FAILED.findall(done.stdout)
        passed = [test for test in mutant.tests if not any(map_to(test, each) for each in failed)]
        if done.returncode == 0:
            return Verdict(SURVIVED, f"passes: {', '.join(mutant.tests)}")
        if done.returncode != 1 or not failed:  # nothing was collected, or nothing began
            return Verdict(BROKEN, (done.stdout + done.stderr)[-1000:])
        if passed:
            return Verdict(SURVIVED, f"passes: {', '.join(passed)}")
        return Verdict(CAUGHT, failed[0])

    def _scenario(self, mutant: Mutant) -> Verdict:
        words = (mutant.scenario, str(mutant.seeds))
        try:
            done = self._run(str(ROOT / "tests" / "mutants" / "seeds.py"), *words)
        except subprocess.TimeoutExpired:
            return Verdict(BROKEN, f"its seeds have not ended after {LIMIT_S:.0f} s")
        if done.returncode not in (0, 1):
            return Verdict(BROKEN, (done.stdout + done.stderr)[-1000:])
        if done.returncode == 0:
            return Verdict(SURVIVED, f"{mutant.seeds} seeds of {mutant.scenario} see nothing")
        return Verdict(CAUGHT, done.stdout.strip())

    def _run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        paths = os.pathsep.join([str(self.sources), str(ROOT / "tests")])
        # Bytecode is kept beside the copy: a test must not start from that of another mutant.
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": str(self._cache)}
        command = [sys.executable, *arguments]
        return completed(command, LIMIT_S, env=environment, cwd=ROOT, text=True)

    def _write(self, file: Path, source: str) -> None:
        file.write_text(source)
        for bytecode in self._cache.rglob(f"{file.stem}.*.pyc"):
            bytecode.unlink()


def map_to(test: str, failed: str) -> bool:
    """Tell whether a test that failed is this one, or this one with parameters."""
    return failed == test or failed.startswith((f"{test}[", f"{test}::"))
