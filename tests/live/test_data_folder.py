"""The data folder of a node: frames that survive a process, and disks that fail."""

import shutil
import sqlite3
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
    assert again.load() == [*((PART, frame) for frame in frames[:3]), (OTHER, frames[3])]
    again.forget(ForgetFrames(PART, tuple(map(name, frames[:2]))))
    again.keep(kept(frames[0]))
    again.close()
    last = opened(tmp_path / "b")
    assert last.load() == [(PART, frames[2]), (OTHER, frames[3]), (PART, frames[0])]
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


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "unstored.sqlite")
    database.execute("CREATE TABLE mine (x)")
    database.close()
    with pytest.raises(LocalError, match="no data folder of this release"):
        opened(tmp_path)
    (tmp_path / "unstored.sqlite").write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(LocalError, match="cannot be used"):
        opened(tmp_path)
