"""The record of each log: a second statement of how far it had come, in a file of its own.

A disk may forget the end of a log that a storage node has acknowledged: its write-ahead log is cut,
the file is deleted, or an old copy of it is put in its place. The record tells. It holds the
promised epoch and the vote, and the rank (log epoch, length) and the hash of the log.

Order of a write that raises the rank: log synchronised, record synchronised, acknowledged. Order of
a write that cuts the log: record lowered and synchronised, log synchronised, record synchronised.
So at every moment the record on the disk ranks at most as high as the log on the disk:

- before the log is written, it is at most the old rank, and at most the rank after the cut;
- after the log is written, it is the same record, and the new log ranks at least as high as that;
- after the record is written, both are equal.

A power cut or a killed process therefore never leaves a log below its record. If a log is below
its record, the disk has forgotten something. Such a record stays as it is until the log ranks as
high again, or until the loss is accepted. Epoch and vote only ever rise, and are in both files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import Mark
from anabranch.core.store import (
    NOBODY,
    AcceptLoss,
    Adopt,
    Delete,
    Doubt,
    KeepMarks,
    LogState,
    LogWrite,
    Loss,
    Owe,
    Rank,
    Restart,
    Truncate,
)

MAX_LOSSES = 32  # of one log that are remembered: the latest

HashAt = Callable[[StreamPart, int], bytes]  # nothing if it is not known


class Record(msgspec.Struct, frozen=True):
    """What is recorded of one log."""

    part: StreamPart
    epoch: int = 0
    voted: NodeId = NOBODY
    log_epoch: int = 0
    length: int = 0
    hash: bytes = NO_HASH  # of the log at this length; empty: not known
    is_restored: bool = False  # the other storage nodes have to say how far the log must come
    marks: tuple[Mark, ...] = ()  # the newest signed mark of each storage node of the stream
    losses: tuple[Loss, ...] = ()  # that were accepted

    @property
    def rank(self) -> Rank:
        """How far the log had come."""
        return self.log_epoch, self.length


Changes = dict[StreamPart, Record | None]  # None: the part is deleted


class Records:
    """The records of all logs of one store, and which logs are below theirs."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.saved = {record.part: record for record in records}
        self._below: dict[StreamPart, None] = {}

    def compare(self, states: Mapping[StreamPart, LogState], hash_at: HashAt) -> Changes:
        """Compare all logs with their records, when a store is opened; return what to record.

        The logs must be synchronised before that is written. A log of the recorded rank with
        another hash is not the log that was recorded: nobody here can say how much of it is right,
        so the other storage nodes are asked.
        """
        self._below = {}
        changes: Changes = {}
        for part, state in states.items():
            if part not in self.saved:  # the log is older than the record, or just begun
                changes[part] = self._raised(Record(part), state)
        for part, record in self.saved.items():
            state = states.get(part) or LogState(part)
            if state.rank < record.rank:
                self._below[part] = None
                continue
            if state.log_epoch == record.log_epoch and record.length >= state.start:
                found = hash_at(part, record.length) if record.hash else b""
                if found and found != record.hash:
                    record = msgspec.structs.replace(record, is_restored=True)
            changes[part] = self._raised(record, state)
        return {part: to for part, to in changes.items() if to != self.saved.get(part)}

    def lowered(self, batches: Iterable[Sequence[LogWrite]]) -> Changes:
        """Return what has to be on the disk before these writes are."""
        changes: Changes = {}
        for write in (write for batch in batches for write in batch):
            record = changes.get(write.part, self.saved.get(write.part))
            if record is None:
                continue
            if type(write) is Delete:
                changes[write.part] = None
            elif write.part not in self._below:
                log_epoch, length = _least(write, record)
                if (log_epoch, length) != record.rank:
                    changes[write.part] = msgspec.structs.replace(
                        record, log_epoch=log_epoch, length=length, hash=b""
                    )
        return changes

    def raised(self, writes: Iterable[LogWrite], states: Iterable[LogState]) -> Changes:
        """Return what has to be on the disk after these writes, which led to these states."""
        changes: Changes = {}
        for state in states:
            changes[state.part] = self.saved.get(state.part) or Record(state.part)
        by_part = {state.part: state for state in states}
        for write in writes:
            record = changes.get(write.part)
            if type(write) is Delete:
                changes[write.part] = None
            elif record is not None:
                changes[write.part] = _told(record, write, by_part[write.part])
        for part, record in changes.items():
            if record is not None:
                changes[part] = self._raised(record, by_part[part])
        return {part: to for part, to in changes.items() if to != self.saved.get(part)}

    def _raised(self, record: Record, state: LogState) -> Record:
        """Return the record of a log that stands so now."""
        if state.epoch > record.epoch:
            record = msgspec.structs.replace(record, epoch=state.epoch, voted=state.voted)
        if state.rank < record.rank:
            return record
        log_epoch, length = state.rank
        return msgspec.structs.replace(record, log_epoch=log_epoch, length=length, hash=state.hash)

    def keep(self, changes: Changes, states: Iterable[LogState] = ()) -> None:
        """Take note of what is on the disk now."""
        for part, record in changes.items():
            if record is None:
                self.saved.pop(part, None)
                self._below.pop(part, None)
            else:
                self.saved[part] = record
        for state in states:
            recorded = self.saved.get(state.part)
            if recorded is not None and state.rank < recorded.rank:
                self._below[state.part] = None
            else:
                self._below.pop(state.part, None)

    def restore(self, parts: Iterable[StreamPart]) -> Changes:
        """Return records that force recovery from a majority of the other storage nodes."""
        every = dict.fromkeys([*self.saved, *parts])
        known = {part: self.saved.get(part) or Record(part) for part in every}
        return {
            part: msgspec.structs.replace(record, is_restored=True)
            for part, record in known.items()
        }

    def state(self, state: LogState) -> LogState:
        """Return how a log stands, with what its record says beyond it."""
        record = self.saved.get(state.part)
        if record is None:
            return state
        if record.epoch > state.epoch:
            state = msgspec.structs.replace(state, epoch=record.epoch, voted=record.voted)
        owed = record.rank if state.part in self._below else (0, 0)
        return msgspec.structs.replace(
            state,
            owed=owed,
            is_restored=record.is_restored,
            marks=record.marks,
            losses=record.losses,
        )


def _least(write: LogWrite, record: Record) -> Rank:
    """Return a rank that neither the log before a write nor the log after it is below."""
    log_epoch, length = record.rank
    if type(write) is Truncate:
        return log_epoch, min(length, write.length)
    if type(write) is Restart:
        return log_epoch, min(length, write.offset)
    if type(write) is Adopt:
        return min(log_epoch, write.log_epoch), length
    return record.rank


def _told(record: Record, write: LogWrite, state: LogState) -> Record:
    """Return a record after a write that is for the record alone."""
    if type(write) is KeepMarks:
        return msgspec.structs.replace(record, marks=write.marks)
    if type(write) is Doubt:
        return msgspec.structs.replace(record, is_restored=True)
    if type(write) is Owe:
        if write.by_majority:
            record = msgspec.structs.replace(record, is_restored=False)
        if write.rank <= record.rank:
            return record
        log_epoch, length = write.rank
        return msgspec.structs.replace(record, log_epoch=log_epoch, length=length, hash=b"")
    if type(write) is AcceptLoss:
        losses = (*record.losses, write.loss)[-MAX_LOSSES:]
        log_epoch, length = state.rank
        return msgspec.structs.replace(
            record,
            log_epoch=log_epoch,
            length=length,
            hash=state.hash,
            is_restored=False,
            losses=losses,
        )
    return record
