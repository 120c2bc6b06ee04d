from pathlib import Path

from matplotlib.figure import Figure

from anabranch.lab.pictures import save


def test_a_picture_is_written_twice_and_always_the_same(tmp_path: Path) -> None:
    for name in ("one", "other"):
        figure = Figure()
        figure.subplots().plot([1, 2], [3, 4], label="line")
        save(figure, tmp_path / f"{name}.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "one.svg").read_text()
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
