"""A storage node comes back where it was."""

from pathlib import Path

from anabranch.live.storage.ports import FILE, Ports, remember, remembered


def test_ports_are_remembered_in_the_folder(tmp_path: Path) -> None:
    assert remembered(tmp_path) == Ports()
    remember(tmp_path, Ports(7_801, 7_802))
    assert remembered(tmp_path) == Ports(7_801, 7_802)
    (tmp_path / FILE).write_text("torn")
    assert remembered(tmp_path) == Ports()
