"""Private files: whole or absent, closed to others, and changed by one writer at a time."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.live.private_files import one_writer, write_private
from support.waiting import limit

posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions and locks of POSIX")

COUNT = """
import sys
from pathlib import Path
from anabranch.live.private_files import one_writer, write_private
path = Path(sys.argv[1])
for _ in range(20):
    with one_writer(path):
        write_private(path, str(int(path.read_text()) + 1), overwrite=True)
"""


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_files_and_new_folders_are_their_owners_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "a" / "b" / "file"
    write_private(path, "text", overwrite=False)
    assert path.read_text() == "text"
    assert permissions(path) == 0o600
    assert permissions(tmp_path / "a" / "b") == permissions(tmp_path / "a") == 0o700
    assert permissions(tmp_path) == 0o755  # not ours to change


@posix
def test_an_overwritten_file_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new", overwrite=True)
    assert path.read_text() == "new"
    assert permissions(path) == 0o600


def test_a_file_that_must_stay_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileExistsError):
        write_private(path, "new", overwrite=False)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "half \udc80", overwrite=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_where_a_folder_should_be_does_not_count_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        write_private(tmp_path / "file" / "inner", "text", overwrite=False)


@posix
def test_what_a_symbolic_link_points_to_is_written(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere" / "file")
    write_private(link, "text", overwrite=True)
    assert link.is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_text() == "text"


@posix
def test_writers_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "count"
    path.write_text("0")
    command = [sys.executable, "-c", COUNT, str(path)]
    writers = [subprocess.Popen(command) for _ in range(3)]
    assert [writer.wait(limit(60)) for writer in writers] == [0, 0, 0]
    assert path.read_text() == "60"


def test_an_error_gives_the_turn_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(KeyError), one_writer(path):
        raise KeyError
    with one_writer(path):
        write_private(path, "text", overwrite=False)
    assert path.read_text() == "text"
