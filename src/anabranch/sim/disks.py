"""What a simulated node has on its disk: changes of the registry, and group keys.

A disk survives its node's crash; what was still on the way to it does not.
"""

from anabranch.core.ids import NodeId
from anabranch.core.machine import KeepKey, Store

WRITE_S = 0.002  # what it takes until a change is on the disk

Row = tuple[str, int, bytes]  # chain, height, change
KeyName = tuple[str, NodeId, bytes]  # stream, publisher, key id


class Disk:
    """The disk of one node."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.keys: dict[KeyName, KeepKey] = {}
        self.problem = ""  # why nothing can be stored, if that is so

    def store(self, change: Store) -> str:
        """Keep a change; return the problem if there is one."""
        if not self.problem:
            self.rows.append((change.chain, change.sequence, change.change))
        return self.problem

    def keep(self, key: KeepKey) -> None:
        """Keep a group key."""
        self.keys[key.stream, key.publisher, key.key_id] = key
