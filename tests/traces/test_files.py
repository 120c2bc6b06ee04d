"""Traces go to disk and come back, and their hash does not depend on the form."""

from pathlib import Path

import pyarrow.parquet
import pytest

from anabranch.core.errors import LocalError
from anabranch.sim.scenario import Run, Scenario
from anabranch.traces import files, schema
from anabranch.traces.files import COLUMNS, FULL, TraceWriter, read_trace
from anabranch.traces.recorder import Recorder

A, B = "0x" + "a" * 40, "0x" + "b" * 40
OF_FRAME = ("0x1/s#0", A, "00ff", 77)

ONE_OF_EACH: list[schema.Record] = [
    schema.Published(1.0, A, *OF_FRAME, 2, 400),
    schema.Sent(1.0, A, *OF_FRAME, B, 405),
    schema.Received(1.5, B, *OF_FRAME, A, 1),
    schema.Duplicate(1.6, B, *OF_FRAME, A),
    schema.Delivered(1.5, B, *OF_FRAME, 2, 1, 500.25),
    schema.Dropped(1.7, B, *OF_FRAME, "not-neighbour", A),
    schema.Subscribed(0.3, A, "0x1/s#0"),
    schema.Unsubscribed(2.5, A, "0x1/s#0"),
    schema.Stopped(2.6, A),
    schema.Linked(0.5, A, B, True),
    schema.Instruction(0.4, B, A, "0x1/s#0", 3, [A, B]),
    schema.Rtt(0.5, A, B, 12.5),
    schema.Unicast(0.5, A, B, 6.25),
    schema.Topology(2.0, A, "0x1/s#0", [B]),
    schema.Noted(2.0, A, "fault", "forged"),
]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.parquet"])
def test_every_kind_of_record_comes_back(tmp_path: Path, name: str) -> None:
    assert {type(record) for record in ONE_OF_EACH} == set(schema.Record.__args__)
    with TraceWriter(tmp_path / name) as writer:
        for record in ONE_OF_EACH:
            writer.write(record)
    assert list(read_trace(tmp_path / name)) == ONE_OF_EACH


def test_every_field_of_every_kind_has_a_column() -> None:
    fields = {f for kind in schema.KINDS.values() for f in kind.__struct_fields__}
    assert fields | {"kind"} == set(COLUMNS)


def test_the_hash_is_of_the_trace_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = set()
    for batch, path in [(1, None), (3, tmp_path / "a.jsonl"), (10, tmp_path / "a.parquet")]:
        monkeypatch.setattr(files, "BATCH_RECORDS", batch)
        with TraceWriter(path) as writer:
            for record in ONE_OF_EACH:
                writer.write(record)
        hashes.add((writer.sha256(), writer.records))
    assert len(hashes) == 1
    with TraceWriter() as other:
        other.write(ONE_OF_EACH[0])
    assert other.sha256() not in {found for found, _ in hashes}


def test_a_parquet_trace_has_few_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH_RECORDS", 2)
    monkeypatch.setattr(files, "ROW_GROUP_RECORDS", 6)
    path = tmp_path / "trace.parquet"
    with TraceWriter(path) as writer:
        for record in ONE_OF_EACH:
            writer.write(record)
    groups = pyarrow.parquet.ParquetFile(path).metadata
    rows = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    assert rows == [6, 6, len(ONE_OF_EACH) - 12]
    assert list(read_trace(path)) == ONE_OF_EACH


def test_a_trace_needs_a_name_that_says_its_form(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"\.jsonl or \.parquet"):
        TraceWriter(tmp_path / "trace.csv")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"kind":"rtt","at":1,"node":"a","peer":"b","rtt_ms":1}\n{"kind":"oops"}\n')
    with pytest.raises(LocalError, match="line 2"):
        list(read_trace(path))


def test_a_run_leaves_a_trace_that_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    with TraceWriter(path) as writer:
        run = Run(Scenario(nodes=8, run_for_s=3, settle_for_s=2), 1, Recorder(writer.write)).go()
    counts: dict[str, int] = {}
    for record in read_trace(path):
        kind = type(record).__name__
        if not (isinstance(record, schema.Linked) and not record.up):
            counts[kind] = counts.get(kind, 0) + 1
    frames = len(run.checker.frames)
    assert counts["Published"] == frames
    assert counts["Delivered"] == frames * 8
    assert counts["Received"] == frames * 7
    assert counts["Sent"] == counts["Received"] + counts["Duplicate"] == frames * (7 * 3 + 4)
    assert counts["Subscribed"] == 8
    assert counts["Linked"] == counts["Rtt"]
    assert counts["Topology"] == 2 * 8
    assert counts["Instruction"] >= 8
    assert "Dropped" not in counts


def test_a_trace_with_a_limit_ends_by_saying_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, max_records=3) as writer:
        for at in range(10):
            writer.write(schema.Rtt(float(at), "0xaa", "0xbb", 1.0))
    assert (writer.records, writer.refused) == (3, 8)
    records = list(read_trace(path))
    assert [type(record) for record in records] == [schema.Rtt, schema.Rtt, schema.Noted]
    assert (records[-1].at, records[-1].what) == (2.0, FULL)


def test_what_was_flushed_is_there_in_whole_lines_though_the_writer_is_not_closed(
    tmp_path: Path,
) -> None:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    for at in range(1_000):
        writer.write(schema.Rtt(float(at), "0xaa", "0xbb", 1.0))
    writer.flush()
    assert len(list(read_trace(tmp_path / "trace.jsonl"))) == 1_000
    writer.close()
