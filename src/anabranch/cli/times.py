"""Times as people write them on a command line."""

import re
from datetime import UTC, datetime, timedelta

from anabranch.core.errors import LocalError
from anabranch.live.terms import Time

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")


def parse_duration(text: str | None) -> timedelta | None:
    """Read a duration such as 90s, 30m, 1h, 7d; `never` is none at all."""
    if text is None:
        return None
    if text == "never":
        return timedelta(0)
    found = _DURATION.fullmatch(text)
    if found is None:
        raise LocalError(f"{text!r} is no duration: write 30m, 1h, 7d, or never")
    return timedelta(seconds=float(found[1]) * _UNITS[found[2]])


def parse_time(text: str) -> Time:
    """Read so long ago (90s, 10m, 2h, 7d), a date and time (in UTC), or milliseconds."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    ago = _DURATION.fullmatch(text)
    if ago is not None:
        return timedelta(seconds=float(ago[1]) * _UNITS[ago[2]])
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise LocalError(
            f"{text!r} is no time: write 10m or 2h for so long ago, 2026-11-16T08:00Z, or "
            "milliseconds since 1970"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
