"""`python -m anabranch` is the command line."""

import runpy
import subprocess
import sys


def test_the_module_is_the_command_line() -> None:
    command = [sys.executable, "-m", "anabranch", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    for verb in ("key", "lab", "simulate"):
        assert verb in done.stdout


def test_a_worker_process_that_imports_it_does_not_start_over() -> None:
    assert callable(runpy.run_module("anabranch.__main__", run_name="__mp_main__")["main"])
