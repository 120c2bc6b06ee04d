"""What a simulated node has on its disk: changes of the registry, group keys, logs.

A disk survives its node's crash; what was still on the way to it does not.
"""

from anabranch.core.ids import NodeId
from anabranch.core.machine import Find, Found, KeepKey, Store, Write, Wrote
from anabranch.core.store import StoreError
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
        self.problem = ""  # why nothing can be stored, if that is so

    def store(self, change: Store) -> str:
        """Keep a change; return the problem if there is one."""
        if not self.problem:
            self.rows.append((change.chain, change.sequence, change.change))
        return self.problem

    def write(self, write: Write) -> Wrote:
        """Write to the logs of a storage node."""
        if self.problem:
            return Wrote(write.token, self.problem)
        try:
            return Wrote(write.token, "", *self.logs.write(write.writes))
        except StoreError as error:
            return Wrote(write.token, str(error))

    def find(self, find: Find) -> Found:
        """Look something up in the logs of a storage node."""
        return Found(find.token, self.logs.find(find.query))

    def keep(self, key: KeepKey) -> None:
        """Keep a group key."""
        self.keys[key.stream, key.publisher, key.key_id] = key
