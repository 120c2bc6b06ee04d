"""Logs as a primary would have them, and nodes that follow one."""

from collections.abc import Sequence

from anabranch.core.messages import Fetched, Lead
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import Entry
from anabranch.core.store import Adopt, Copy, Promise, Settle, hash_after
from anabranch.sim.stores import MemoryStore
from machines import NODES, PART, START, Chain
from storage_desk import PUBLISHERS, Desk

ONE = NODES[1]
NOW_MS = int(START * 1000)


class Log:
    """A log as a primary would have it: entries of one message each."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        self.hashes = [NO_HASH]
        for offset, entry in enumerate(entries):
            self.hashes.append(hash_after(self.hashes[-1], offset, entry))

    def page(self, epoch: int, begin: int, at: int, end: int, high: int = 0) -> Fetched:
        """Make the page of the entries from one offset to another."""
        entries = tuple(self.entries[at:end])
        return Fetched(PART, epoch, begin, high, at, self.hashes[at], False, entries)


def entries(epoch: int, count: int, number: int = 1) -> list[Entry]:
    """Make entries of one chain."""
    chain = Chain(PUBLISHERS[0], number=number)
    return [Entry(epoch, NOW_MS, chain.frame()) for _ in range(count)]


def following(log: Log, log_epoch: int, epoch: int, high: int = 0) -> Desk:
    """A node that has a log, and hears that another leads in an epoch."""
    store = MemoryStore()
    whole = [Copy(PART, 0, tuple(log.entries)), Settle(PART, high), Adopt(PART, log_epoch)]
    store.write([Promise(PART, log_epoch, ONE), *whole])
    desk = Desk(store=store)
    desk.hear(ONE, Lead(PART, epoch, len(log.entries)))
    desk.save()
    return desk
