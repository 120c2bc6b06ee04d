from pathlib import Path

import pytest

from anabranch.lab.delay_tables import DelayTable, TableError, read_table


def test_access_delays_are_paid_at_both_ends() -> None:
    table = DelayTable([[0, 10], [20, 0]], [0, 1, 1], [1, 2, 4])
    assert table.delay_s(0, 1) == pytest.approx(0.013)
    assert table.delay_s(2, 0) == pytest.approx(0.025)
    assert table.delay_s(1, 2) == pytest.approx(0.006)
    assert table.mean_delay_s(2) == pytest.approx((0.013 + 0.023) / 2)


def test_places_beyond_the_rows_lie_where_they_are_told() -> None:
    table = DelayTable([[1, 10], [20, 2]], [0, 0], beyond=1)
    assert table.delay_s(0, 9) == 0.010
    assert table.delay_s(9, 10) == 0.002


def test_a_table_is_read_with_its_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("0, 1.5\n\n2e1, 0\n")
    assert read_table(path) == [[0, 1.5], [20, 0]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no rows"),
        ("0,1\n2,far\n", "line 2: 'far' is not a number"),
        ("0,\n1,0\n", "line 1: '' is not a number"),
        ("0,1\n2,-3\n", "line 2: a delay must be 0 or more, not -3"),
        ("0,nan\n2,3\n", "must be 0 or more, not nan"),
        ("0,inf\n2,3\n", "must be 0 or more, not inf"),
        ("0,1\n2\n", "not square: it has 2 rows, and line 2 has 1 columns"),
        ("0,1\n", "not square: it has 1 rows, and line 1 has 2 columns"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=complaint):
        read_table(path)


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be read: No such file"):
        read_table(tmp_path / "nowhere.csv")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff")
    with pytest.raises(TableError, match="not text with commas"):
        read_table(tmp_path / "picture.csv")
