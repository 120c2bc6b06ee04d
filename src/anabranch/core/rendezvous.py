"""Which trackers a stream part belongs to, without anybody keeping a table of it.

Every tracker draws a weight from the hash of the part and its own name; the heaviest is the
part's first, the next takes over when it is gone, and so on. When a tracker comes or goes, only
the parts move for which it is the first.
"""

import hashlib
from collections.abc import Container, Sequence

from anabranch.core.changes import TrackerEntry
from anabranch.core.ids import NodeId, PartKey, StreamPart, part_key
from anabranch.core.messages import Contact
from anabranch.core.overlay import PartSettings
from anabranch.core.registry_view import StreamView

_DOMAIN = b"anabranch rendezvous v1\0"


def weigh(key: PartKey, tracker: NodeId) -> bytes:
    """Return a tracker's weight for a part."""
    return hashlib.sha256(_DOMAIN + key + tracker).digest()


def trackers_for(
    part: StreamPart, entries: Sequence[TrackerEntry], own: tuple[Contact, ...] = ()
) -> tuple[Contact, ...]:
    """Return a part's trackers in the order in which nodes turn to them."""
    if own:
        return own
    key = part_key(part)
    heaviest_first = sorted(entries, key=lambda entry: weigh(key, entry.node), reverse=True)
    return tuple(entry.contact for entry in heaviest_first)


def settings_of(
    part: StreamPart,
    stream: StreamView | None,
    entries: Sequence[TrackerEntry],
    left: Container[NodeId] = (),
) -> PartSettings | None:
    """Return what the registry says of a part; None: there is no such stream or partition.

    Trackers that were `left` come after all others.
    """
    created = stream.created if stream is not None else None
    if created is None or part.partition >= created.partitions:
        return None
    trackers = trackers_for(part, entries, created.trackers)
    in_favour_first = sorted(trackers, key=lambda contact: contact.node in left)
    return PartSettings(
        overlay=created.overlay,
        degree=created.degree,
        trackers=tuple(in_favour_first),
        is_stored=bool(created.storage),
    )
