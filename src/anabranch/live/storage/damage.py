"""Damage of a storage node's logs, as its pages show it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from anabranch.core.ids import StreamPart
from anabranch.core.store import Missing
from anabranch.live.storage.sqlite import SqliteLogStore

MAX_SHOWN = 100  # ranges of a page
SCRUB_DAYS = 7.0  # how long it takes to read all that is kept, unless it is said


class Damage(msgspec.Struct, frozen=True):
    """Offsets that are damaged and not repaired, and how far the scrub is."""

    missing: Mapping[StreamPart, tuple[Missing, ...]] = msgspec.field(default_factory=dict)
    failure: str = ""  # why a damaged file cannot be rebuilt
    is_rebuilding: bool = False
    kept_aside: str = ""  # the damaged file
    scrub: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def messages(self) -> int:
        """How many messages are damaged."""
        return sum(hole.end - hole.start for holes in self.missing.values() for hole in holes)

    @property
    def progress(self) -> float:
        """How much of the scrub is done, from 0 to 1."""
        return float(self.scrub.get("progress", 0.0))

    @property
    def finished_s(self) -> float:
        """When a scrub was last done, in seconds since 1970; 0: never."""
        return float(self.scrub.get("finished_s") or 0.0)

    @property
    def problem(self) -> str:
        """A text about the damage and its repair; empty if nothing is damaged."""
        if self.failure:
            return self.failure
        if self.is_rebuilding:
            return "the file of the logs is damaged and is being rebuilt"
        if not self.missing:
            return ""
        ranges = sum(map(len, self.missing.values()))
        return (
            f"{self.messages} messages in {ranges} ranges of offsets are damaged on the disk: they "
            "are fetched from the stream's other storage nodes, if there are any that have them"
        )

    def shown(self) -> dict[str, Any]:
        """Return it for a page."""
        ranges = [
            {
                "stream": part.stream,
                "partition": part.partition,
                "start": hole.start,
                "end": hole.end,
            }
            for part, holes in sorted(self.missing.items())
            for hole in holes
        ]
        return {
            "messages": self.messages,
            "ranges": ranges[:MAX_SHOWN],
            "truncated": len(ranges) > MAX_SHOWN,
            "rebuilding": self.is_rebuilding,
            "kept_aside": self.kept_aside or None,
        }


def damage_of(store: SqliteLogStore, scrub: dict[str, Any]) -> Damage:
    """Return the damage on the disk, with how far the scrub is."""
    return Damage(
        store.missing(),
        store.problem,
        store.is_rebuilding,
        "" if store.kept_aside is None else str(store.kept_aside),
        scrub,
    )
