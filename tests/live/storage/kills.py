"""Kills a process that appends, again and again, and looks whether all it said is there."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

from anabranch.core.store import HashAt
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import check_log
from machines import PART

MAX_LINES = 60  # that are read before a process is killed
TESTS = Path(__file__).parents[2]


def append_and_kill(path: Path, seed: int, rng: Random) -> list[tuple[int, str]]:
    """Let a process append for a while and kill it; return what it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, str(TESTS / "live/storage/appender.py"), str(path), str(seed)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        text=True,
    )
    assert child.stdout is not None
    wanted = rng.randrange(1, MAX_LINES)
    lines = [child.stdout.readline() for _ in range(wanted)]
    child.kill()
    lines += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    # The last line may be cut off where the process was killed.
    said = [line.split() for line in lines if line.endswith("\n")]
    assert len(said) >= wanted, "the process ended by itself"
    return [(int(length), hashed) for length, hashed in said]


def check_after_kill(path: Path, said: list[tuple[int, str]]) -> int:
    """See that the log has everything that was acknowledged; return how long it is."""
    store = SqliteLogStore(path)
    [state] = store.states()
    assert state.length >= said[-1][0], "messages are missing that were acknowledged"
    assert (state.owed, state.is_restored) == ((0, 0), False), "nothing was forgotten"
    for length, hashed in said:
        assert store.find(HashAt(PART, length)).hash.hex() == hashed
    check_log(store, state)
    store.close()
    return state.length
