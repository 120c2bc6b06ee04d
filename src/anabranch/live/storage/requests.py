"""What a request for a part of a log says: which offsets, of whom, of when, in which form."""

from aiohttp import web

from anabranch.core.errors import LocalError
from anabranch.core.ids import MAX_TIMESTAMP_MS, StreamPart, number_of, parse_node
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.live.storage.columns import FORMS, MESSAGES, Wanted
from anabranch.live.storage.ranges import LogStatus, RequestError, cut_off


def parse_range(request: web.Request, part: StreamPart, status: LogStatus) -> Wanted:
    """Read which range is asked for; it ends where the log is settled now."""
    start = number_in(request, "start", status.start, MAX_NUMBER)
    end = number_in(request, "end", MAX_NUMBER, MAX_NUMBER)
    form = request.query.get("form", MESSAGES)
    if form not in FORMS:
        raise RequestError(400, "bad-request", f"form {form[:30]!r}: write {' or '.join(FORMS)}")
    if end < start:
        raise RequestError(400, "bad-request", f"end {end} lies before start {start}")
    if start < status.start:
        raise cut_off(start, status)
    if start > status.high:
        raise RequestError(
            416,
            "not-there-yet",
            f"offset {start} is not settled yet: the log can be read up to {status.high}",
            start=status.start,
            high=status.high,
        )
    from_ms = number_in(request, "from_ms", 0, MAX_TIMESTAMP_MS)
    after = max(number_of(from_ms, 0) - 1, 0)
    upto = MAX_NUMBER
    if "to_ms" in request.query:
        upto = max(number_of(number_in(request, "to_ms", 0, MAX_TIMESTAMP_MS), 0) - 1, 0)
    return Wanted(part, start, min(end, status.high), form, _publisher(request), after, upto)


def _publisher(request: web.Request) -> bytes:
    text = request.query.get("publisher", "")
    try:
        return parse_node(text) if text else b""
    except LocalError as error:
        raise RequestError(400, "bad-request", f"publisher: {error}") from error


def number_in(request: web.Request, name: str, default: int, most: int) -> int:
    """Return a number of the query."""
    text = request.query.get(name)
    return default if text is None else parse_number(text, name, most)


def parse_number(text: str, name: str, most: int) -> int:
    """Read a number that is not too large; the refusal says which one it was."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise RequestError(
            400, "bad-request", f"{name} {text[:30]!r}: write a number from 0 to {most}"
        )
    return int(text)
