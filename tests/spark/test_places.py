"""Where jobs write, and whose checkpoints are whose."""

import os
from pathlib import Path

import pytest

from anabranch import LocalError
from anabranch.spark.places import (
    LOGS,
    NOTE,
    Job,
    check_file,
    claim,
    exists,
    files_in,
    inside,
    make_folder,
    place_of,
    write_file,
)

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
    claim(checkpoint, JOB, {})
    assert exists(inside(checkpoint, NOTE))
    claim(checkpoint, JOB, {})
    other = Job("telemetry", ("0xaa/a",), "out", "parquet")
    with pytest.raises(LocalError, match=r"another job \(name: archive, not telemetry\)"):
        claim(checkpoint, other, {})
    (tmp_path / "checkpoint" / NOTE).write_text("{")
    with pytest.raises(LocalError, match="cannot be read"):
        claim(checkpoint, JOB, {})


@pytest.mark.parametrize("log", ["_spark_metadata", "_delta_log"])
def test_a_new_checkpoint_is_refused_for_a_table_that_is_there(tmp_path: Path, log: str) -> None:
    os.makedirs(tmp_path / "table" / log)
    with pytest.raises(LocalError, match="holds a table already"):
        claim(str(tmp_path / "new"), JOB, {str(tmp_path / "table"): str(tmp_path / "new")})
    assert not exists(str(tmp_path / "new"))


@pytest.mark.parametrize("name", ["part-0.parquet", "day=1/part-0.parquet"])
def test_a_folder_with_files_of_others_is_refused(tmp_path: Path, name: str) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "table" / "state"
    (table / "empty").mkdir(parents=True)
    checkpoint.mkdir()
    (checkpoint / "file").touch()  # the checkpoint itself may lie there
    (table / "_SUCCESS").touch()
    claim(str(checkpoint), JOB, {str(table): str(checkpoint)})
    (checkpoint / NOTE).unlink()
    (table / name).parent.mkdir(exist_ok=True)
    (table / name).touch()
    with pytest.raises(LocalError, match=r"is not of this job, .* name another folder with --out"):
        claim(str(checkpoint), JOB, {str(table): str(checkpoint)})
    assert not (checkpoint / NOTE).exists()


@pytest.mark.parametrize("format", LOGS)
def test_a_checkpoint_whose_table_is_gone_is_refused(tmp_path: Path, format: str) -> None:
    table, checkpoint, job = tmp_path / "table", tmp_path / "state", Job("a", (), "out", format)
    tables = {str(table): str(checkpoint / "query")}
    commits = checkpoint / "query" / "commits"
    commits.mkdir(parents=True)
    claim(str(checkpoint), job, tables)
    (commits / ".0.crc").touch()
    claim(str(checkpoint), job, tables)  # nothing is committed, and so nothing is missing
    (commits / "0").touch()
    with pytest.raises(LocalError, match=r"is gone, .* restore the table, or remove that"):
        claim(str(checkpoint), job, tables)
    (table / LOGS[format]).mkdir(parents=True)
    claim(str(checkpoint), job, tables)


def test_a_page_replaces_another_when_it_is_whole(tmp_path: Path) -> None:
    page, link = tmp_path / "new" / "page.html", tmp_path / "new" / "link.html"
    check_file(page)
    write_file(page, "before")
    link.symlink_to(page)
    with pytest.raises(UnicodeEncodeError):
        write_file(link, "half \ud800")
    assert page.read_text() == "before"
    write_file(link, "zwölf")
    assert page.read_bytes() == "zwölf".encode()
    assert sorted(page.parent.iterdir()) == [link, page]
    with pytest.raises(LocalError, match=r"is no file: name one with --out"):
        check_file(page.parent)


def test_a_folder_that_leads_back_to_itself_is_told_of(tmp_path: Path) -> None:
    for name in ("a/one.jsonl", "a/_hidden.jsonl", "b/two.jsonl", "b/.git/three.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "b").symlink_to(tmp_path / "b")
    (tmp_path / "a" / "nowhere").symlink_to("nowhere")
    assert sorted(file.name for file in files_in(tmp_path)) == [
        *("one.jsonl", "two.jsonl", "two.jsonl")
    ]
    (tmp_path / "b" / "a").symlink_to(tmp_path / "a")
    with pytest.raises(LocalError, match=r"leads back to .*: remove this link"):
        list(files_in(tmp_path / "a"))
    with pytest.raises(LocalError, match=r"cannot be read \(No such file or directory\)"):
        list(files_in(tmp_path / "none"))
