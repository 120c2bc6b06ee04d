"""The numbers of a batch: the same whoever runs it, and above those of the batch before."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import SEQUENCE_BITS
from anabranch.spark.epochs import GUARD_MS, MAX_NOTES, STEP_MS, Checkpoint, Epoch

STREAM = "0x" + "ab" * 20 + "/s"
T = 1_700_000_000_000


def note_batch(folder: Path, batch: int, began_ms: int) -> None:
    """Write what Spark writes before a batch runs."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": "query"}))
    lines = ["v1", json.dumps({"batchTimestampMs": began_ms}), "{}"]
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))
    (folder / "offsets" / f".{batch}.crc").write_bytes(b"x")


def test_a_chain_belongs_to_a_query_a_task_and_a_part() -> None:
    chains = [
        Epoch(query, 0, T).chain(task, stream, partition)
        for query in ("a", "b")
        for task in (0, 1)
        for stream in (STREAM, STREAM + "b")
        for partition in (0, 1)
    ]
    assert len(set(chains)) == 16
    assert Epoch("a", 0, T).chain(0, STREAM, 0) == Epoch("a", 7, T + 9).chain(0, STREAM, 0)


@given(st.integers(0, 10_000_000), st.integers(0, 10 * STEP_MS), st.integers(0, 1 << 62))
def test_a_number_is_recent_and_tells_its_position(position: int, late_ms: int, last: int) -> None:
    epoch = Epoch("a", 3, T, {f"{5:016x}": min(last, T << SEQUENCE_BITS)})
    numbering = epoch.numbering(5)
    number = numbering.number(position, numbering.step(T + late_ms))
    assert numbering.position(number) == position
    assert number > numbering.previous
    assert late_ms - STEP_MS < (number - position >> SEQUENCE_BITS) - T <= late_ms


def test_a_batch_goes_on_from_the_one_before_even_if_the_clock_went_back() -> None:
    stands = {f"{5:016x}": (T + 1_000 << SEQUENCE_BITS) + 3}
    numbering = Epoch("a", 3, T, stands).numbering(5)
    assert numbering.previous == stands[f"{5:016x}"]
    assert numbering.number(0, numbering.step(T)) == numbering.previous + 1


def test_nothing_is_begun_at_the_end_of_a_step() -> None:
    numbering = Epoch("a", 3, T).numbering(5)
    for begins in (0, STEP_MS, 7 * STEP_MS):
        assert numbering.pause_ms(T + begins) == 0
        assert numbering.pause_ms(T + begins + STEP_MS - GUARD_MS - 1) == 0
        assert numbering.pause_ms(T + begins + STEP_MS - GUARD_MS) == GUARD_MS
        assert numbering.pause_ms(T + begins + STEP_MS - 1) == 1
    assert numbering.pause_ms(T - 1) == 0  # a clock that is behind
    assert numbering.step(T - 1) == numbering.step(T + STEP_MS - 1) == 0


def test_the_batch_that_runs_is_the_last_that_spark_has_noted(tmp_path: Path) -> None:
    for batch in range(11):
        note_batch(tmp_path, batch, T + batch)
    for location in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        assert Checkpoint(location).epoch() == Epoch("query", 10, T + 10)


def test_what_a_batch_notes_is_for_those_after_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    note_batch(tmp_path, 0, T)
    first = checkpoint.epoch()
    checkpoint.note(first, {"a": 1, "b": 2})
    assert checkpoint.epoch() == first  # run again, it stands where it stood
    note_batch(tmp_path, 1, T + 1)
    second = checkpoint.epoch()
    assert second.stands == {"a": 1, "b": 2}
    checkpoint.note(second, {"b": 3, "c": 4})
    note_batch(tmp_path, 5, T + 5)  # those between had nothing to note
    assert checkpoint.epoch().stands == {"a": 1, "b": 3, "c": 4}


def test_old_notes_go(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    for batch in (0, 1, MAX_NOTES):
        checkpoint.note(Epoch("query", batch, T), {})
    assert sorted(path.name for path in (tmp_path / "anabranch").iterdir()) == ["1", str(MAX_NOTES)]


def test_notes_that_are_none_are_named(tmp_path: Path) -> None:
    note_batch(tmp_path, 1, T)
    (tmp_path / "anabranch").mkdir()
    (tmp_path / "anabranch" / "0").write_text("{}")
    with pytest.raises(LocalError, match="anabranch/0 in the checkpoint"):
        Checkpoint(str(tmp_path)).epoch()
