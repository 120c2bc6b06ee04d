"""The data folder of a node: frames that survive a process, and disks that fail."""

import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.frames import peek
from anabranch.core.machine import ForgetFrames, KeepFrame
from anabranch.core.messages.storage import FrameName
from anabranch.live.data_folder import DataFolder
from machines import NODES, OTHER, PART, SIGNERS, Chain

NET = b"n" * 32
ME = NODES[9]


def opened(path: Path) -> DataFolder:
    folder = DataFolder(path)
    folder.open(NET, ME)
    return folder


def kept(frame: bytes) -> KeepFrame:
    return KeepFrame(PART, name(frame), frame)


def name(frame: bytes) -> FrameName:
    return FrameName(peek(frame).chain, peek(frame).last)


def test_frames_that_were_committed_survive_a_process_that_is_killed(tmp_path: Path) -> None:
    chain = Chain(SIGNERS[9])
    frames = [chain.frame() for _ in range(4)]
    folder = opened(tmp_path / "a")
    assert folder.load() == []
    for frame in frames[:3]:
        folder.keep(kept(frame))
    folder.keep(KeepFrame(OTHER, name(frames[3]), frames[3]))
    folder.commit()
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # as it is, without an orderly end
    again = opened(tmp_path / "b")
    assert again.load() == [*map(kept, frames[:3]), KeepFrame(OTHER, name(frames[3]), frames[3])]
    again.forget(ForgetFrames(PART, tuple(map(name, frames[:2]))))
    again.keep(kept(frames[0]))
    again.close()
    last = opened(tmp_path / "b")
    assert [each.frame for each in last.load()] == [frames[2], frames[3], frames[0]]
    last.close()
    folder.close()


def test_the_node_key_of_a_folder_stays_and_nobody_else_can_read_the_folder(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a")
    assert folder.node_identity().node == DataFolder(tmp_path / "a").node_identity().node
    folder.open(NET, ME)
    for path in (tmp_path / "a").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    folder.close()


def test_a_folder_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    with pytest.raises(LocalError, match="each process needs its own"):
        opened(tmp_path)
    folder.close()
    opened(tmp_path).close()


def test_a_folder_that_fails_is_said_and_the_node_goes_on(tmp_path: Path) -> None:
    folder, frame = opened(tmp_path), Chain(SIGNERS[9]).frame()
    other = sqlite3.connect(tmp_path / "unstored.sqlite", isolation_level=None)
    other.execute("DROP TABLE frames")
    folder.keep(kept(frame))
    folder.commit()
    assert str(tmp_path) in folder.problem
    folder.keep(kept(frame))
    folder.forget(ForgetFrames(PART, (name(frame),)))
    other.close()
    folder.close()


def test_a_folder_that_was_full_is_written_anew_when_there_is_room(tmp_path: Path) -> None:
    chain, folder = Chain(SIGNERS[9]), opened(tmp_path / "a")
    effects = [kept(chain.frame(bytes(3_000))) for _ in range(4)]
    folder.keep(effects[0])
    folder.commit()
    limit_pages(folder, 1)
    for effect in effects[1:]:
        folder.keep(effect)
        folder.commit()
    assert "is full" in folder.problem
    assert not folder.write_anew(effects)
    assert "is full" in folder.problem
    limit_pages(folder, 1_000)
    folder.forget(ForgetFrames(PART, (effects[0].name,)))  # what waits no longer
    assert folder.write_anew(effects[1:])
    assert folder.problem == ""
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folder.close()
    again = opened(tmp_path / "b")
    assert again.load() == effects[1:]
    again.close()


def limit_pages(folder: DataFolder, most: int) -> None:
    assert folder._database is not None
    folder._database.execute(f"PRAGMA max_page_count = {most}")


def test_damaged_frames_are_left_out_and_counted(tmp_path: Path) -> None:
    chain, folder = Chain(SIGNERS[9]), opened(tmp_path)
    effects = [kept(chain.frame(bytes(200), b"more")) for _ in range(3)]
    effects[2].is_given = True
    for effect in effects:
        folder.keep(effect)
    folder.close()
    path = tmp_path / "unstored.sqlite"
    content = bytearray(path.read_bytes())
    content[content.find(effects[1].frame) + 170] ^= 1  # in its body
    path.write_bytes(content)
    folder = opened(tmp_path)
    assert folder.load() == [effects[0], effects[2]]
    assert folder.damaged == {PART: 2}
    assert folder.loss == f"2 messages in {tmp_path} were damaged on the disk, and are lost"
    folder.close()
    folder = opened(tmp_path)
    assert (folder.load(), folder.loss) == ([effects[0], effects[2]], ""), "it is said once"
    folder.close()


def test_every_sector_of_zeros_is_counted_or_refused(tmp_path: Path) -> None:
    chain, folder = Chain(SIGNERS[9]), opened(tmp_path / "a")
    effects = [kept(chain.frame(bytes([at]) * 700)) for at in range(20)]
    for effect in effects:
        folder.keep(effect)
    folder.close()
    content = (tmp_path / "a" / "unstored.sqlite").read_bytes()
    seen = Counter[str]()
    for at in range(0, len(content), 512):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        (tmp_path / "b" / "unstored.sqlite").write_bytes(
            content[:at] + bytes(512) + content[at + 512 :]
        )
        folder = DataFolder(tmp_path / "b")
        try:
            folder.open(NET, ME)
            found = folder.load()
        except LocalError as error:
            assert "data folder" in str(error)  # noqa: PT017
            seen["refused"] += 1
        else:
            assert all(each in effects for each in found)
            assert len(found) + sum(folder.damaged.values()) == len(effects), at
            seen["damaged" if folder.damaged else "whole"] += 1
        folder.close()
    assert min(seen[each] for each in ("refused", "damaged")) > 3


def test_a_file_is_no_data_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LocalError, match=r"cannot be made a folder \(it is a file\)"):
        DataFolder(tmp_path / "file").node_identity()


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "unstored.sqlite")
    database.execute("CREATE TABLE mine (x)")
    database.close()
    with pytest.raises(LocalError, match="no data folder of this release"):
        opened(tmp_path)
    (tmp_path / "unstored.sqlite").write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(LocalError, match="cannot be used"):
        opened(tmp_path)
