"""Where jobs write, and whose checkpoints are whose."""

import os
from pathlib import Path

import pytest

from anabranch import LocalError
from anabranch.spark.places import NOTE, Job, claim, exists, inside, make_folder, place_of

JOB = Job("archive", ("0xaa/a",), "out", "parquet")


def test_a_place_is_named_in_full() -> None:
    assert place_of("table") == f"{Path.cwd()}/table"
    assert place_of("s3://bucket/table/") == "s3://bucket/table"
    assert inside("hdfs://host/a", "b", "c") == "hdfs://host/a/b/c"


def test_a_folder_is_made_and_one_that_cannot_be_is_told_of(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"cannot be written to .*: name another folder"):
        make_folder(str(tmp_path / "file"))


def test_a_checkpoint_is_claimed_once_and_recognised(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    claim(checkpoint, JOB, [])
    assert exists(inside(checkpoint, NOTE))
    claim(checkpoint, JOB, [])
    other = Job("telemetry", ("0xaa/a",), "out", "parquet")
    with pytest.raises(LocalError, match=r"another job \(name: archive, not telemetry\)"):
        claim(checkpoint, other, [])
    (tmp_path / "checkpoint" / NOTE).write_text("{")
    with pytest.raises(LocalError, match="cannot be read"):
        claim(checkpoint, JOB, [])


@pytest.mark.parametrize("log", ["_spark_metadata", "_delta_log"])
def test_a_new_checkpoint_is_refused_for_a_table_that_is_there(tmp_path: Path, log: str) -> None:
    os.makedirs(tmp_path / "table" / log)
    with pytest.raises(LocalError, match="holds a table already"):
        claim(str(tmp_path / "new"), JOB, [str(tmp_path / "table")])
    assert not exists(str(tmp_path / "new"))
