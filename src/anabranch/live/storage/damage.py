"""Damage of a storage node's logs, as its pages show it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from anabranch.core.ids import NodeId, StreamPart, show
from anabranch.core.log_recovery import Lost
from anabranch.core.part_log import LogStatus
from anabranch.core.store import Loss, Missing
from anabranch.live.storage.sqlite import SqliteLogStore

MAX_SHOWN = 100  # ranges of a page
MAX_NAMED = 5  # in a text
SCRUB_DAYS = 7.0  # how long it takes to read all that is kept, unless it is said


class Damage(msgspec.Struct, frozen=True):
    """Offsets that are damaged or forgotten, logs that disagree, and how far the scrub is."""

    missing: Mapping[StreamPart, tuple[Missing, ...]] = msgspec.field(default_factory=dict)
    failure: str = ""  # why a damaged file cannot be rebuilt
    is_rebuilding: bool = False
    kept_aside: str = ""  # the damaged file
    scrub: dict[str, Any] = msgspec.field(default_factory=dict)
    lost: Mapping[StreamPart, Lost] = msgspec.field(default_factory=dict)
    disagreeing: Mapping[StreamPart, tuple[NodeId, ...]] = msgspec.field(default_factory=dict)
    losses: Mapping[StreamPart, tuple[Loss, ...]] = msgspec.field(default_factory=dict)

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
        return "; ".join(filter(None, (self._damaged(), self._forgotten(), self._disagreement())))

    def _damaged(self) -> str:
        if not self.missing:
            return ""
        ranges = sum(map(len, self.missing.values()))
        return (
            f"{self.messages} messages in {ranges} ranges of offsets are damaged on the disk: they "
            "are fetched from the stream's other storage nodes, if there are any that have them"
        )

    def _forgotten(self) -> str:
        """Return what the disk has forgotten: the ranges that can be named, and what to do."""
        if not self.lost:
            return ""
        named = [_name(part, lost) for part, lost in sorted(self.lost.items())]
        more = f", and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        text = f"the disk has forgotten {', '.join(named[:MAX_NAMED])}{more}: "
        if any(lost.is_waiting for lost in self.lost.values()):
            return text + (
                "no storage node that is linked has more; start those that are away, or go on "
                "without it: anabranch storage accept-loss STREAM --data FOLDER"
            )
        return text + "it is copied from the stream's other storage nodes"

    def _disagreement(self) -> str:
        """Return whose logs differ below a high-water mark."""
        if not self.disagreeing:
            return ""
        named = [
            f"{part} differs from {', '.join(map(show, nodes))}"
            for part, nodes in sorted(self.disagreeing.items())
        ]
        return (
            "settled parts of logs are not the same at all storage nodes: "
            f"{'; '.join(named[:MAX_NAMED])}: compare them, and remove the storage node that is "
            "wrong from the stream"
        )

    def shown_losses(self) -> dict[str, Any]:
        """Return for a page what is forgotten, what was given up, and which logs disagree."""
        forgotten = [
            {**_place(part), **msgspec.structs.asdict(lost)}
            for part, lost in sorted(self.lost.items())
        ]
        accepted = [
            {**_place(part), **msgspec.structs.asdict(loss)}
            for part, losses in sorted(self.losses.items())
            for loss in losses
        ]
        disagreeing = [
            {**_place(part), "nodes": [show(node) for node in nodes]}
            for part, nodes in sorted(self.disagreeing.items())
        ]
        return {
            "forgotten": forgotten[:MAX_SHOWN],
            "accepted_losses": accepted[-MAX_SHOWN:],
            "disagreeing": disagreeing[:MAX_SHOWN],
        }

    def shown(self) -> dict[str, Any]:
        """Return it for a page."""
        ranges = [
            {**_place(part), "start": hole.start, "end": hole.end}
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


def damage_of(
    store: SqliteLogStore, scrub: dict[str, Any], statuses: Mapping[StreamPart, LogStatus]
) -> Damage:
    """Return the damage on the disk, with how far the scrub is, and what the disk forgot."""
    return Damage(
        store.missing(),
        store.problem,
        store.is_rebuilding,
        "" if store.kept_aside is None else str(store.kept_aside),
        scrub,
        {part: status.lost for part, status in statuses.items() if status.lost is not None},
        {part: status.disagrees for part, status in statuses.items() if status.disagrees},
        {part: status.losses for part, status in statuses.items() if status.losses},
    )


def _place(part: StreamPart) -> dict[str, Any]:
    return {"stream": part.stream, "partition": part.partition}


def _name(part: StreamPart, lost: Lost) -> str:
    if not lost.is_known:
        return f"an unknown part of {part} from offset {lost.start} on"
    if lost.start == lost.end:
        return f"the end of {part} at offset {lost.start}"
    return f"offsets {lost.start} to {lost.end - 1} of {part}"
