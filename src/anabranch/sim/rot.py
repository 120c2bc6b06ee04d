"""Rows of a store that are damaged, although the disk does not know it yet.

A query that reads such a row finds it, and so does the scrub. The row is then cut out of the store
before the query is answered, as the store on a real disk does it.
"""

from collections.abc import Sequence

from anabranch.core.frames import peek
from anabranch.core.ids import StreamPart
from anabranch.core.messages.storage import FrameName
from anabranch.core.store import Answer, Copy, HashAt, LogQuery, LogWrite, OrderHeld
from anabranch.sim.stores import MemoryStore


class Rot:
    """The latent damage of one store."""

    def __init__(self, logs: MemoryStore) -> None:
        self._logs = logs
        self._latent: dict[StreamPart, dict[FrameName, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._latent.values()))

    def add(self, part: StreamPart, name: FrameName) -> None:
        """Let a row be damaged."""
        self._latent.setdefault(part, {})[name] = None

    def has(self, part: StreamPart, name: FrameName) -> bool:
        """Tell whether a row is damaged and not found yet."""
        return name in self._latent.get(part, ()) and self._logs.has(part, name)

    def find(self, query: LogQuery) -> Answer:
        """Answer a query, after all damaged rows that it reads are cut out."""
        while True:
            answer = self._logs.find(query)
            heads = [peek(row.entry.frame) for row in answer.placed]
            names = [FrameName(head.chain, head.last) for head in heads]
            if type(query) is HashAt and query.part in self._latent:
                rows = self._logs.names(query.part)
                names = [name for offset, name in rows if offset == query.offset]
            if not self._cut_out(query.part, names):
                return answer

    def write(self, writes: Sequence[LogWrite]) -> None:
        """Cut out what some writes would read; what they write anew is good."""
        for write in writes:
            latent = self._latent.get(write.part)
            if not latent:
                continue
            if type(write) is OrderHeld:
                held = [name for offset, name in self._logs.names(write.part) if offset is None]
                self._cut_out(write.part, held)
            elif type(write) is Copy:
                for entry in write.entries:
                    head = peek(entry.frame)
                    latent.pop(FrameName(head.chain, head.last), None)

    def scrub(self) -> None:
        """Read all rows."""
        for part, names in list(self._latent.items()):
            self._cut_out(part, list(names))
        self._latent.clear()

    def _cut_out(self, part: StreamPart, names: Sequence[FrameName]) -> bool:
        """Cut out the damaged ones of some rows; tell whether there were any."""
        latent = self._latent.get(part, {})
        found = [name for name in names if name in latent]
        for name in found:
            del latent[name]
            if self._logs.has(part, name):
                self._logs.damage(part, name)
        return bool(found)
