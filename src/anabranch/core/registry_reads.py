"""What is to be read from which tracker, and what has been asked: bounded for each tracker.

One tracker that does not answer must not keep us from asking another, so each has a line of its
own. A chain stands in the line of a tracker once, and is asked for once at a time.
"""

import random
from collections.abc import Iterable

import msgspec

from anabranch.core.ids import NodeId
from anabranch.core.timers import Timers

REFRESH_S = 60.0  # about how often a chain is read though nobody says that it has changed
TOGETHER_S = 2.0  # what is due within this is read at one time: one packet for many chains
ANSWER_S = 3.0  # how long a tracker may take to answer a read
MAX_READS = 128  # under way at once, at one tracker


def read_again_at(began_at: float, now: float, rng: random.Random) -> float:
    """Return when to read a chain again that has just been read.

    It is one of the moments of a node that began at its own time, so that a node in many streams
    wakes seldom, and many nodes do not ask at once.
    """
    due_at = now + REFRESH_S * (0.75 + 0.5 * rng.random())
    return due_at - (due_at - began_at) % TOGETHER_S


class Read(msgspec.Struct):
    """A question to a tracker that has not been answered."""

    ticket: int
    tracker: NodeId
    chain: str
    asked_at: float
    again: bool = False  # something happened after we asked


class Reads:
    """The lines of all trackers that we ask."""

    def __init__(self) -> None:
        self._due: dict[NodeId, dict[str, None]] = {}
        self._under_way: dict[NodeId, dict[str, Read]] = {}
        self._tickets: dict[int, Read] = {}
        self._ticket = 0
        self._timers: Timers[int] = Timers()

    @property
    def wakeup_at(self) -> float | None:
        """When a tracker has taken too long to answer."""
        return self._timers.next_at

    @property
    def most_under_way(self) -> int:
        """How many questions the busiest tracker has to answer."""
        return max(map(len, self._under_way.values()), default=0)

    def open(self, tracker: NodeId, chains: Iterable[str]) -> None:
        """Begin to ask a tracker: for all these."""
        self._due[tracker] = dict.fromkeys(chains)
        self._under_way[tracker] = {}

    def close(self, tracker: NodeId) -> None:
        """Ask a tracker no more; what it says yet comes too late."""
        del self._due[tracker]
        for read in self._under_way.pop(tracker).values():
            self._drop(read)

    def want(self, tracker: NodeId, chain: str) -> None:
        """Ask a tracker for a chain, or once more if the answer to come may be too old."""
        read = self._under_way[tracker].get(chain)
        if read is not None:
            read.again = True
        else:
            self._due[tracker][chain] = None

    def unwant(self, tracker: NodeId, chain: str) -> None:
        """Do not ask a tracker for a chain, after all."""
        self._due[tracker].pop(chain, None)

    def forget(self, chain: str) -> None:
        """Ask nobody for a chain."""
        for due in self._due.values():
            due.pop(chain, None)
        for under_way in self._under_way.values():
            if chain in under_way:
                self._drop(under_way.pop(chain))

    def begin(self, now: float) -> list[Read]:
        """Return what can be asked now; it is under way then."""
        begun: list[Read] = []
        for tracker, due in self._due.items():
            under_way = self._under_way[tracker]
            while due and len(under_way) < MAX_READS:
                chain = next(iter(due))
                del due[chain]
                self._ticket += 1
                read = Read(self._ticket, tracker, chain, now)
                self._tickets[read.ticket] = under_way[chain] = read
                self._timers.set(read.ticket, now + ANSWER_S)
                begun.append(read)
        return begun

    def end(self, ticket: int, tracker: NodeId) -> Read | None:
        """Return what a tracker was asked, and has answered; None: nothing, or it was too late."""
        read = self._tickets.get(ticket)
        if read is None or read.tracker != tracker:
            return None
        del self._under_way[tracker][read.chain]
        self._drop(read)
        return read

    def overdue(self, now: float) -> list[Read]:
        """Return what was not answered in time; it is to be asked again."""
        late = [self._tickets[ticket] for ticket in self._timers.pop_due(now)]
        for read in late:
            del self._tickets[read.ticket], self._under_way[read.tracker][read.chain]
            self._due[read.tracker][read.chain] = None
        return late

    def _drop(self, read: Read) -> None:
        del self._tickets[read.ticket]
        self._timers.cancel(read.ticket)
