"""Waiting until messages are stored, for a process that leaves, and the error if they are not.

After a full wait in vain, later waits of the same process for the same network are short, until
one of them succeeds, or until the storage nodes are linked that were not linked before: a job that
connects many times does not wait again and again for storage nodes that are away.
"""

from collections.abc import Mapping

from anabranch.core.ids import StreamPart
from anabranch.core.unstored import Unstored
from anabranch.live.data_folder import DataFolder
from anabranch.live.errors import NotStored

CLOSE_WAIT_S = 10.0
SHORT_WAIT_S = 1.5  # enough for a link to a storage node that has returned
MAX_AWAY = 1_000  # networks

# Networks whose storage nodes did not sign during a full wait, and whether they were linked then.
_away: dict[bytes, bool] = {}


def close_wait_s(network: bytes, asked_s: float, is_linked: bool) -> float:
    """Return how long to wait in all, as it looks now; `is_linked`: storage nodes are linked."""
    was_linked = _away.get(network)
    is_short = was_linked is not None and (was_linked or not is_linked)
    return min(asked_s, SHORT_WAIT_S) if is_short else asked_s


def note_wait(network: bytes, is_stored: bool, is_linked: bool) -> None:
    """Remember how a wait ended."""
    if is_stored:
        _away.pop(network, None)
    elif network in _away or len(_away) < MAX_AWAY:
        _away[network] = is_linked


def not_stored(left: Mapping[StreamPart, Unstored], folder: DataFolder | None) -> NotStored:
    """Say what a node leaves behind that is not stored; `folder` is its data folder, if any."""
    streams: dict[str, int] = {}
    kept = 0
    for part, unstored in left.items():
        streams.setdefault(part.stream, 0)
        streams[part.stream] += unstored.waiting + unstored.given_up
        kept += unstored.waiting
    count = sum(streams.values())
    text = f"{count} messages are not known to be stored ({_listed(streams)}): "
    if folder is not None and folder.loss:
        text += f"{folder.loss}; "
    if folder is not None and folder.problem:
        text += f"the newest are not in a folder either, since {folder.problem}"
    elif folder is not None and kept:
        text += (
            f"{kept} of them are kept in {folder.path}, and are offered to the storage nodes again "
            "by the next process that uses this folder"
        )
    elif folder is not None and folder.loss:
        text += "all others are stored"
    else:
        text += (
            "their storage nodes are away, or do not follow; start them before you publish, wait "
            "longer (close_wait_s, --close-wait), or keep messages in a folder (data, --data)"
        )
    return NotStored(text, count, streams)


def _listed(streams: Mapping[str, int]) -> str:
    shown = [f"{count} of {stream}" for stream, count in sorted(streams.items())[:3]]
    return ", ".join(shown) + (", ..." if len(streams) > 3 else "")
