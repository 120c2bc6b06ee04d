"""What a storage node has asked of its store, and who waits for the answer."""

from collections.abc import Callable, Sequence

from anabranch.core.ids import StreamPart
from anabranch.core.machine import Effect, Find, Found, Notice, Sizes, Write, Wrote
from anabranch.core.store import DIVERGED, GONE, Answer, LogQuery, LogWrite

MAX_UNSAVED_BYTES = 64 << 20  # of frames that are not on the disk yet
BEHIND_BYTES = MAX_UNSAVED_BYTES // 2  # beyond this, publishers are asked to rest
MAX_WRITES = 1_000  # one for each log
MAX_FINDS = 40_960  # follows from 1,000 logs of 16 storage nodes, and the bounds of all who ask

Touched = tuple[StreamPart, list[Effect]]  # whose log it was, and what follows
AfterWrite = Callable[[Wrote, float], list[Effect]]
AfterFind = Callable[[Answer, float], list[Effect]]
Look = Callable[[LogQuery, AfterFind], Effect]  # looks something up


class Disk:
    """Numbers writes and queries, and bounds what has to wait in memory."""

    def __init__(self, keep_ms: int | None = None) -> None:
        self.keep_ms = keep_ms  # the store deletes what is older; None: nothing for its age
        self.problem = ""  # why nothing can be written; empty if all is well
        self.dropped = 0  # frames for which there was no room while they could not be written
        self._token = 0
        self._writes: dict[int, tuple[StreamPart, AfterWrite]] = {}
        self._finds: dict[int, tuple[StreamPart, AfterFind]] = {}
        self._unsaved_bytes = 0
        self._is_full = False

    def write(self, writes: Sequence[LogWrite], then: AfterWrite) -> Effect:
        """Write something of one part; `then` is called with how that went."""
        self._token += 1
        self._writes[self._token] = (writes[0].part, then)
        return Write(self._token, tuple(writes))

    def find(self, query: LogQuery, then: AfterFind) -> Effect:
        """Look something up; `then` is called with the answer."""
        self._token += 1
        self._finds[self._token] = (query.part, then)
        return Find(self._token, query)

    def wrote(self, event: Wrote, now: float) -> Touched:
        """Pass on how a write went."""
        effects: list[Effect] = []
        if not event.problem.startswith((DIVERGED, GONE)):  # which are dealt with
            if event.problem and not self.problem:
                kind = "storage-full" if "full" in event.problem.lower() else "storage-failed"
                effects.append(Notice(None, kind, event.problem))
            self.problem = event.problem
        part, then = self._writes.pop(event.token)
        return part, effects + then(event, now)

    def found(self, event: Found, now: float) -> Touched:
        """Pass on an answer."""
        part, then = self._finds.pop(event.token)
        return part, then(event.answer, now)

    # --- Room in memory -------------------------------------------------------------------

    def reserve(self, size: int) -> bool:
        """Take room for a frame; if there is none it is dropped, and counted."""
        if self._unsaved_bytes + size > MAX_UNSAVED_BYTES:
            self.dropped += 1
            return False
        self._unsaved_bytes += size
        return True

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for the disk that frames may soon have to be dropped."""
        return self._unsaved_bytes > BEHIND_BYTES

    def free(self, size: int) -> None:
        """Give room back."""
        self._unsaved_bytes -= size
        self._is_full = False

    def complain(self) -> list[Effect]:
        """Say, once until there is room again, that frames are dropped."""
        if self._is_full:
            return []
        self._is_full = True
        hint = f"{MAX_UNSAVED_BYTES >> 20} MiB wait for the disk: {self.problem or 'it is slow'}"
        return [Notice(None, "storage-dropped", hint)]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "unsaved bytes": (self._unsaved_bytes, MAX_UNSAVED_BYTES),
            "log writes": (len(self._writes), MAX_WRITES),
            "log queries": (len(self._finds), MAX_FINDS),
        }
