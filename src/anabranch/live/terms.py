"""How people name things: streams, rights, addresses, trackers, times."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from anabranch.core.changes import MAX_CONFIRM_WITHIN_S, PUBLIC, Right, parse_rights
from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    MAX_PARTITIONS,
    MAX_TIMESTAMP_MS,
    NodeId,
    parse_node,
    stream_part,
)
from anabranch.core.messages import Contact
from anabranch.core.messages.tracker import MAX_NEIGHBOURS
from anabranch.overlays import OVERLAYS

LEAST_CONFIRM_S = 180  # a chain is read about every minute

Time = datetime | timedelta | int | float  # a moment, so long ago, or milliseconds since 1970


def millis(at: Time, now: float) -> int:
    """Read a time as milliseconds since 1970."""
    if isinstance(at, timedelta):
        ms = (now - at.total_seconds()) * 1000
    elif isinstance(at, datetime):
        if at.tzinfo is None:
            raise LocalError(f"{at} is in no time zone: give one, such as datetime.now(UTC)")
        ms = at.timestamp() * 1000
    elif isinstance(at, int | float) and not isinstance(at, bool):
        ms = at
    else:
        raise LocalError(
            f"{at!r} is no time: give a datetime, a timedelta (so long ago), or milliseconds"
        )
    if not 0 <= ms <= MAX_TIMESTAMP_MS:
        raise LocalError(f"{at!r} lies outside of all times: give milliseconds since 1970")
    return int(ms)


def full_name(name: str, owner: str) -> str:
    """Return `<owner>/<path>` for a path of one's own; check a full name."""
    full = name if name.startswith("0x") else f"{owner}/{name.lstrip('/')}"
    return stream_part(full).stream


def rights_of(rights: str | Iterable[str]) -> Right:
    """Read rights as people name them; one name, or several."""
    names = (rights,) if isinstance(rights, str) else tuple(rights)
    if not all(isinstance(name, str) for name in names):
        raise LocalError(f"{names!r} are no rights: name publish, subscribe, grant, edit, delete")
    return parse_rights(names)


def check_settings(partitions: int | None, overlay: str | None, degree: int | None) -> None:
    """Refuse what no stream can be."""
    if overlay is not None and overlay not in OVERLAYS:
        raise LocalError(f"there is no overlay {overlay!r}: choose of {', '.join(OVERLAYS)}")
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        raise LocalError(f"{partitions} partitions: a stream has 1 to {MAX_PARTITIONS}")
    if degree is not None and not 2 <= degree <= MAX_NEIGHBOURS:
        raise LocalError(f"a degree of {degree}: a node has 2 to {MAX_NEIGHBOURS} neighbours")


def confirm_within_of(wanted: timedelta | float | None) -> int | None:
    """Read within which time rights have to be confirmed: seconds; 0 is never."""
    if wanted is None:
        return None
    seconds = wanted.total_seconds() if isinstance(wanted, timedelta) else float(wanted)
    if seconds != 0 and not LEAST_CONFIRM_S <= seconds <= MAX_CONFIRM_WITHIN_S:
        raise LocalError(
            f"confirm within {seconds:g} s: give {LEAST_CONFIRM_S} s or more, at most "
            f"{MAX_CONFIRM_WITHIN_S // 86_400} days, or 0 for never"
        )
    return int(seconds)


def node_of(who: str) -> NodeId:
    """Read an address, or `public`; the zero address may be a mistake, and is nobody's."""
    if who == "public":
        return PUBLIC
    if not isinstance(who, str):
        raise LocalError(f"{who!r} is nobody: name an address (0x...) or public")
    node = parse_node(who)
    if node == PUBLIC:
        raise LocalError("the zero address is nobody's: write public if you mean everyone")
    return node


def check_public(node: NodeId, rights: int) -> None:
    """Refuse to let everybody be an administrator."""
    if node == PUBLIC and rights & ~(Right.PUBLISH | Right.SUBSCRIBE):
        raise LocalError("everyone may publish or subscribe; grant, edit and delete are for some")


def contact_of(tracker: Contact | str) -> Contact:
    """Read a tracker as people write it: 0x...=ws://host:port."""
    if isinstance(tracker, Contact):
        return tracker
    node, _, place = str(tracker).partition("=")
    if not place.startswith(("ws://", "wss://")):
        raise LocalError(f"{tracker!r} names no tracker: write 0x...=ws://host:port")
    return Contact(parse_node(node), place)


def require_part(name: str, partitions: int, partition: int) -> None:
    """Refuse a partition that the stream does not have."""
    if not 0 <= partition < partitions:
        raise LocalError(
            f"{name} has partitions 0 to {partitions - 1}: there is no partition {partition}"
        )


def check_move(before: tuple[NodeId, ...], after: tuple[NodeId, ...]) -> None:
    """Refuse a change of storage nodes that would leave the history behind."""
    if len(set(after)) != len(after):
        raise LocalError("a storage node is named twice: name it once")
    changed = {*before} ^ {*after}
    if before and len(changed) > 1 and after:
        raise LocalError(
            f"this changes {len(changed)} storage nodes at once, and would leave history behind: "
            "add or remove one (--storage with the present ones and one more, or with one more "
            "than there are), let it copy what there is, and then the next"
        )
