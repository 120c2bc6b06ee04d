"""What of a stream's past is wanted, as users say it and as storage nodes are asked."""

import re

from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    CHAIN_KEY_BYTES,
    MAX_SEQUENCE,
    NODE_ID_BYTES,
    chain_key,
    number_of,
    parse_node,
)
from anabranch.core.messages.storage import MAX_LAST, MAX_NUMBER, Selection
from anabranch.live.terms import Time, millis

CHAIN_DIGITS = 2 * (CHAIN_KEY_BYTES - NODE_ID_BYTES)


def of_time(
    now: float,
    start: Time | None = None,
    end: Time | None = None,
    publisher: str | None = None,
    chain: str | None = None,
    last: int | None = None,
) -> Selection:
    """Select by the publishers' time, in its order: from `start` up to `end`, both included."""
    after = 0 if start is None else max(0, number_of(millis(start, now), 0) - 1)
    upto = MAX_NUMBER if end is None else number_of(millis(end, now), MAX_SEQUENCE)
    if upto <= after:
        raise LocalError("nothing lies between these two times: give the earlier one first")
    return Selection(
        after=after, upto=upto, whose=_whose(publisher, chain), last=_last(last), by_number=True
    )


def of_offsets(
    start: int | None = None,
    end: int | None = None,
    publisher: str | None = None,
    chain: str | None = None,
    last: int | None = None,
) -> Selection:
    """Select by offsets, in their order: from `start` up to `end`, without that."""
    first, beyond = start or 0, MAX_NUMBER if end is None else end
    if not (isinstance(first, int) and isinstance(beyond, int) and 0 <= first < beyond):
        raise LocalError("these are no offsets: give two numbers from 0 on, the lower one first")
    return Selection(start=first, end=beyond, whose=_whose(publisher, chain), last=_last(last))


def _last(last: int | None) -> int:
    if last is None:
        return 0
    if isinstance(last, bool) or not isinstance(last, int) or not 1 <= last <= MAX_LAST:
        raise LocalError(f"the last {last!r} messages: give a number from 1 to {MAX_LAST:,}")
    return last


def _whose(publisher: str | None, chain: str | None) -> bytes:
    if publisher is None:
        if chain is not None:
            raise LocalError("a chain is one of its publisher's: name the publisher, too")
        return b""
    node = parse_node(publisher)
    if chain is None:
        return node
    if not re.fullmatch(rf"[0-9a-fA-F]{{{CHAIN_DIGITS}}}", chain):
        raise LocalError(f"{chain!r} is no chain: write its {CHAIN_DIGITS} hexadecimal digits")
    return chain_key(node, int(chain, 16))
