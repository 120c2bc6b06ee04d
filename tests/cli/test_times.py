"""Times on a command line."""

from datetime import UTC, datetime, timedelta

import pytest

from anabranch.cli.times import parse_time
from anabranch.core.errors import LocalError


def test_times_as_people_write_them() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("90s") == timedelta(seconds=90)
    assert parse_time("1.5h") == timedelta(minutes=90)
    assert parse_time("7d") == timedelta(days=7)
    assert parse_time("999999999.9d") < timedelta.max
    assert parse_time("2026-11-16T08:00Z") == datetime(2026, 11, 16, 8, tzinfo=UTC)
    assert parse_time("2026-11-16") == datetime(2026, 11, 16, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["yesterday", "10x", "", "-5m", "\u00b2", "9999999999d", 5_000 * "9"]
)
def test_what_is_no_time_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(LocalError, match="10m or 2h"):
        parse_time(text)
