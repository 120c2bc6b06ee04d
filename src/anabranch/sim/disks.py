"""What a simulated node has on its disk: changes of the registry, group keys, logs.

A disk survives its node's crash; what was still on the way to it does not, as a rule.
"""

from collections.abc import Callable

from anabranch.core.ids import NodeId
from anabranch.core.machine import Find, Found, KeepKey, Store, Write, Wrote
from anabranch.core.store import Answer, StoreError
from anabranch.sim.rot import Rot
from anabranch.sim.stores import MemoryStore

WRITE_S = 0.002  # what it takes until something is on the disk,
READ_S = 0.001  # or has been read from it

Row = tuple[str, int, bytes]  # chain, height, change
KeyName = tuple[str, NodeId, bytes]  # stream, publisher, key id


class Disk:
    """The disk of one node."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.keys: dict[KeyName, KeepKey] = {}
        self.logs = MemoryStore()
        self.rot = Rot(self.logs)
        self.problem = ""  # why nothing can be stored, if that is so
        self.read_problem = ""  # why no log can be read, if that is so
        self.write_s, self.read_s = WRITE_S, READ_S
        self.done_at_crash: Callable[[int], int] = lambda under_way: 0
        self.steps_at_crash: Callable[[], int] = lambda: 0  # of the first that is not done
        self._under_way: dict[int, Write] = {}

    def store(self, change: Store) -> str:
        """Keep a change; return the problem if there is one."""
        if not self.problem:
            self.rows.append((change.chain, change.sequence, change.change))
        return self.problem

    def begin(self, write: Write) -> None:
        """Begin to write to the logs of a storage node."""
        self._under_way[write.token] = write

    def crash(self) -> None:
        """Do some of the writes that are under way, in their order, and some steps of the next."""
        writes, self._under_way = list(self._under_way.values()), {}
        done = self.done_at_crash(len(writes))
        for write in writes[:done]:
            self.write(write)
        for write in writes[done : done + 1]:
            steps = 0 if self.problem else self.steps_at_crash()
            if steps > 1:
                self.rot.write(write.writes)
            self.logs.cut_power(write.writes, steps)

    def write(self, write: Write) -> Wrote:
        """Write to the logs of a storage node."""
        self._under_way.pop(write.token, None)
        if self.problem:
            return Wrote(write.token, self.problem)
        self.rot.write(write.writes)
        try:
            return Wrote(write.token, "", *self.logs.write(write.writes))
        except StoreError as error:
            return Wrote(write.token, str(error))

    def find(self, find: Find) -> Found:
        """Look something up in the logs of a storage node."""
        if self.read_problem:
            return Found(find.token, Answer(problem=self.read_problem))
        return Found(find.token, self.rot.find(find.query))

    def keep(self, key: KeepKey) -> None:
        """Keep a group key."""
        self.keys[key.stream, key.publisher, key.key_id] = key
