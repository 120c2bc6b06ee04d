"""Attempts at one task, each in a process of its own: nothing is published twice."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.core.frames import peek
from anabranch.core.ids import SEQUENCE_BITS
from anabranch.spark import epochs
from anabranch.spark.access import parse_access
from anabranch.spark.epochs import Epoch
from anabranch.spark.publisher import FRAMES_AT_ONCE, Target, _Part, write_rows
from anabranch.spark.rows import Row
from spark.network import RunningNetwork, running_network
from spark.places import Place, contents, place
from support.waiting import limit

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    with running_network(tmp_path_factory.mktemp("publisher"), storage=2) as running:
        yield running


@pytest.fixture(scope="module")
def writer(network: RunningNetwork) -> Path:
    return network.new_key_file("writer")


class Attempts:
    """One task of a thousand rows, as often as it is tried."""

    def __init__(self, there: Place, folder: Path) -> None:
        self._options = {**there.options, "path": str(folder)}

    def run(self, how: str = "") -> tuple[int, int]:
        """Return how many rows were published, and how many found."""
        done = self.start(how)
        assert done.returncode == 0, done.stderr
        published, found = json.loads(done.stdout)
        return published, found

    def start(self, how: str) -> "subprocess.CompletedProcess[str]":
        program = str(Path(__file__).with_name("attempt.py"))
        argv = [sys.executable, program, json.dumps(self._options), how]
        return subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=limit(TIMEOUT_S)
        )


@pytest.mark.parametrize("public", [["subscribe"], []], ids=["public", "private"])
def test_a_task_that_fails_and_is_tried_again_publishes_nothing_twice(
    network: RunningNetwork, writer: Path, tmp_path: Path, public: list[str]
) -> None:
    with place(network, writer, f"again/{len(public)}", public=public) as there:
        attempts = Attempts(there, tmp_path)
        first, _ = attempts.run("half")
        assert first == 512
        there.wait_for(first)
        before = there.frames()
        assert attempts.run() == (1_000 - first, first)
        assert attempts.run() == (0, 1_000)
        assert attempts.run("blind") == (1_000, 0)  # it signs the same frames
        came = there.wait_for(1_000)
        assert sorted(map(int, contents(came))) == list(range(1_000))
        assert [message.gaps for message in came] == [()] * 1_000
        assert sorted(map(int, contents(there.stored()))) == list(range(1_000))
        after = there.frames()
        assert before.items() <= after.items()
        assert len(after) == 8
        other = attempts.start("other")
        assert other.returncode
        assert "an earlier attempt at this batch wrote other rows" in other.stderr


def test_a_batch_that_is_late_is_taken_by_who_has_just_come(
    network: RunningNetwork, writer: Path, tmp_path: Path
) -> None:
    """Two minutes ago it published the first half; the rest follows under later numbers."""
    with place(network, writer, "late") as there:
        attempts = Attempts(there, tmp_path)
        assert attempts.run("late half") == (512, 0)
        assert attempts.run("late") == (488, 512)
        assert attempts.run("late") == (0, 1_000)
        assert contents(there.wait_for(1_000)) == [f"{n:04d}" for n in range(1_000)]


def test_a_frame_that_was_lost_is_published_even_much_later(
    network: RunningNetwork, writer: Path, tmp_path: Path
) -> None:
    """Its old numbers are too old by then, and what followed it in the batch is stored."""
    with place(network, writer, "hole") as there:
        attempts = Attempts(there, tmp_path)
        assert attempts.run("hole") == (1_000, 0)
        assert attempts.run("minute") == (128, 872)
        assert attempts.run("minute") == (0, 1_000)
        assert sum(peek(frame).count for frame in there.frames().values()) == 1_000


def test_an_attempt_that_goes_on_beside_its_successor_publishes_nothing_twice(
    network: RunningNetwork, writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked long ago, and wakes when the numbers of its time are nearly over."""
    step_ms = 3_000
    monkeypatch.setattr(epochs, "STEP_MS", step_ms)
    monkeypatch.setattr(epochs, "STEP", step_ms << SEQUENCE_BITS)
    monkeypatch.setattr(epochs, "GUARD_MS", 1_000)
    rows = [Row(f"{n:04d}".encode(), None) for n in range(1_000)]
    with place(network, writer, "beside") as there:
        target = Target(parse_access(there.options), there.stream.id, 2, 1)
        began_ms = int(time.time() * 1000) - 2_100
        epoch = Epoch("query", 0, began_ms)
        zombie = _Part(there.stream, target, 0, epoch.chain(0, there.stream.id, 0), epoch, rows)

        async def go_on() -> None:
            room = asyncio.Semaphore(FRAMES_AT_ONCE)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(zombie.publish(room, tasks))

        going_on = network.start(go_on())
        successor = network.join(writer)
        written = network.run(write_rows(successor, target, epoch, 0, {0: rows}))
        going_on.result(limit(TIMEOUT_S))
        assert written.published + written.found == 1_000
        assert sorted(map(int, contents(there.wait_for(1_000)))) == list(range(1_000))
        frames = [peek(frame) for frame in there.frames().values()]
        assert sum(head.count for head in frames) == 1_000
        assert min(head.first for head in frames) >= began_ms + step_ms << SEQUENCE_BITS
