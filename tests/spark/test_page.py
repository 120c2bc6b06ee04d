"""Tables and names on a page."""

from datetime import UTC, datetime

from anabranch.spark.page import (
    SHOWN_ROWS,
    Card,
    Section,
    Table,
    name_html,
    page_html,
    percent,
    size_of,
    table_html,
    time_of,
    title_of,
)

ADDRESS = "0x" + "ab" * 20


def test_a_long_table_is_shortened_and_says_so() -> None:
    rows = [{"node": f"n{i}", "sent": i} for i in range(100)]
    html = table_html(Table(rows, 1234), ["node", "sent"])
    assert html.count("<tr>") == 1 + SHOWN_ROWS
    assert f"{SHOWN_ROWS} of 1,234 rows are shown." in html
    assert "rows are shown" not in table_html(Table(rows[:3], 3), ["node", "sent"])
    assert table_html(Table([], 0), ["node"]) == ""


def test_columns_that_tell_nothing_are_left_out() -> None:
    rows = [{"run": "a", "part": p, "x": None, "y": 1.5} for p in ("s#0", "s#1")]
    html = table_html(Table(rows, 2), ["run", "part", "x", "y"])
    assert [word in html for word in (">run<", ">part<", ">x<", ">y<")] == [
        False,
        True,
        False,
        True,
    ]


def test_a_bar_is_as_long_as_its_share_of_the_greatest() -> None:
    html = table_html(Table([{"n": 4}, {"n": 1}, {"n": None}], 3), ["n"], "n")
    assert [part.split("%")[0] for part in html.split("--w:")[1:]] == ["100.0", "25.0", "0.0"]


def test_an_address_is_shortened_and_everything_is_escaped() -> None:
    html = name_html(f"{ADDRESS}/<b>")
    assert html == f'<span title="{ADDRESS}/&lt;b&gt;">0xabababab…/&lt;b&gt;</span>'
    assert name_html("plain") == "plain"


def test_values_are_written_with_their_units() -> None:
    assert [title_of(n) for n in ("p99_ms", "bytes_per_s", "first_at", "error_percent")] == [
        *("p99 (ms)", "bytes /s", "first", "error (%)")
    ]
    assert [percent(s) for s in (1.0, 0.999999, 0.5, 0.0)] == ["100 %", "99.99 %", "50 %", "0 %"]
    assert [size_of(n) for n in (0, 999, 1_500, 2_500_000)] == ["0 B", "999 B", "1.5 kB", "2.5 MB"]
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert time_of(moment) == time_of(moment.timestamp()) == "2026-01-02 03:04:05"


def test_a_page_stands_alone_and_escapes_what_it_is_told() -> None:
    sections = [Section("a", "A & B", "It means <x>.", ""), Section("c", "C", "", "<p>body</p>")]
    html = page_html("<t>", "about", ["<w>"], [Card("1 <", "m")], sections)
    for bad in ("<t>", "<w>", "<x>", "1 <<"):
        assert bad not in html
    assert "The trace says nothing about this." in html
    assert "<p>body</p>" in html
