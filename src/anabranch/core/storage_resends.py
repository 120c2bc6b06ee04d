"""How a storage node answers those who read: a page at a time.

Who asks may subscribe to the stream, or is another of its storage nodes. In the order of offsets
only what is settled is shown. In the order of numbers all that is kept is shown, so that gaps are
filled even while there is no primary; but only what is settled is shown with its offset. Who wants
all of that up to the end is sent to others by a storage node that has not caught up yet.
"""

from collections.abc import Callable
from functools import partial

from anabranch.core.changes import PUBLIC, Right
from anabranch.core.frames import peek
from anabranch.core.ids import CHAIN_KEY_BYTES, NodeId
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import AskEntries, Entries, Resend, Resent
from anabranch.core.messages.storage import LATE, MAX_NUMBER, PAGE_BYTES, Entry, Selection
from anabranch.core.part_log import PartLog
from anabranch.core.registry_view import Registry
from anabranch.core.storage_disk import Disk
from anabranch.core.store import Answer, HashAt, Page

MAX_PAGES = 256  # that are looked up at once
MAX_PAGES_PER_PEER = 8

NOT_STORED, UNPERMITTED, BUSY = "not-stored", "unpermitted", "busy"

UserOf = Callable[[NodeId, float], NodeId | None]  # for whom a peer acts, as it has proved
OnDamage = Callable[[PartLog, float], list[Effect]]


class Readers:
    """Who may read what of the streams that are stored."""

    def __init__(self, registry: Registry, user_of: UserOf) -> None:
        self._registry = registry
        self._user_of = user_of

    def acts_for(self, peer: NodeId, user: NodeId, now: float) -> bool:
        """Tell whether a peer acts for somebody, who may be itself."""
        return user in (peer, self._user_of(peer, now))

    def may_read(self, stream: str, peer: NodeId, now: float) -> bool:
        """Tell whether a peer acts for somebody who may subscribe, or stores the stream too."""
        registry, user = self._registry, self._user_of(peer, now)
        users = (PUBLIC, peer) if user is None else (PUBLIC, user, peer)
        may_subscribe = any(registry.may(stream, each, Right.SUBSCRIBE, now) for each in users)
        return may_subscribe or registry.stores(stream, peer)

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Ask for the newest word on a stream."""
        return self._registry.doubt(stream, now)


class Resends:
    """Pages that are being looked up for others."""

    def __init__(self, disk: Disk, readers: Readers, on_damage: OnDamage) -> None:
        self._disk = disk
        self._readers = readers
        self._on_damage = on_damage
        self._pages = 0
        self._per_peer: dict[NodeId, int] = {}

    def ask(self, sender: NodeId, resend: Resend, log: PartLog | None, now: float) -> list[Effect]:
        """Look a page up, or say why not."""
        problem = self._problem(sender, resend, log, now)
        if problem or log is None:
            answer = Send(sender, Resent(resend.ticket, problem=problem))
            # A permission may be newer than what we know: then it is known the next time.
            is_new = problem == UNPERMITTED
            return [answer, *(self._readers.doubt(resend.part.stream, now) if is_new else ())]
        self._count(sender)
        page = Page(resend.part, resend.selection, log.standing.high, PAGE_BYTES)
        return [self._disk.find(page, partial(self._found, sender, resend, log))]

    def _count(self, sender: NodeId) -> None:
        self._pages += 1
        self._per_peer[sender] = self._per_peer.get(sender, 0) + 1

    def _discount(self, sender: NodeId) -> None:
        self._pages -= 1
        self._per_peer[sender] -= 1
        if not self._per_peer[sender]:
            del self._per_peer[sender]

    def _problem(self, sender: NodeId, resend: Resend, log: PartLog | None, now: float) -> str:
        if log is None or not log.is_active:
            return NOT_STORED
        if not self._readers.may_read(resend.part.stream, sender, now):
            return UNPERMITTED
        is_full = self._pages >= MAX_PAGES
        return BUSY if is_full or self._per_peer.get(sender, 0) >= MAX_PAGES_PER_PEER else ""

    def _found(
        self, sender: NodeId, resend: Resend, log: PartLog, answer: Answer, now: float
    ) -> list[Effect]:
        self._discount(sender)
        effects = self._on_damage(log, now) if answer.missing else []
        if answer.problem or not log.is_active or _lacks_end(resend.selection, answer, log, now):
            problem = NOT_STORED if not log.is_active else BUSY
            return [*effects, Send(sender, Resent(resend.ticket, problem=problem))]
        status = log.status()
        offsets = (MAX_NUMBER if row.offset is None else row.offset for row in answer.placed)
        late = (row.offset for row in answer.placed if row.entry.mark == LATE)
        resent = Resent(
            resend.ticket,
            tuple(row.entry.frame for row in answer.placed),
            tuple(offset if offset < status.high else MAX_NUMBER for offset in offsets),
            answer.following,
            status.start,
            status.high,
            "",
            answer.missing,
            tuple(offset for offset in late if offset is not None and offset < status.high),
        )
        return [*effects, Send(sender, resent)]

    # --- For another storage node, whose log is damaged -----------------------------------

    def ask_entries(
        self, sender: NodeId, ask: AskEntries, log: PartLog | None, now: float
    ) -> list[Effect]:
        """Look entries of a log up for another of the stream's storage nodes."""
        if log is None or not log.is_active or sender not in log.standing.members:
            return [Send(sender, _no_entries(ask, log))]
        if self._pages >= MAX_PAGES or self._per_peer.get(sender, 0) >= MAX_PAGES_PER_PEER:
            return []  # no entries would mean that this node lacks them
        self._count(sender)
        then = partial(self._found_hash, sender, ask, log)
        return [self._disk.find(HashAt(ask.part, ask.start), then)]

    def _found_hash(
        self, sender: NodeId, ask: AskEntries, log: PartLog, answer: Answer, now: float
    ) -> list[Effect]:
        end = min(ask.end, log.standing.state.length)
        if answer.problem:  # the sender asks again
            self._discount(sender)
            return []
        if not answer.hash or ask.start >= end:
            self._discount(sender)
            return [Send(sender, _no_entries(ask, log))]
        page = Page(ask.part, Selection(start=ask.start, end=end), end, PAGE_BYTES)
        then = partial(self._found_entries, sender, ask, log, answer.hash)
        return [self._disk.find(page, then)]

    def _found_entries(
        self,
        sender: NodeId,
        ask: AskEntries,
        log: PartLog,
        hashed: bytes,
        answer: Answer,
        now: float,
    ) -> list[Effect]:
        self._discount(sender)
        if answer.problem:
            return []
        effects = self._on_damage(log, now) if answer.missing else []
        entries: list[Entry] = []
        at = ask.start
        for row in answer.placed:
            if row.offset != at:
                break  # what is damaged is missing here
            at += peek(row.entry.frame).count
            if at > ask.end:
                break
            entries.append(row.entry)
        length = _length_of(log)
        found = Entries(ask.ticket, ask.part, ask.start, hashed, tuple(entries), length)
        return [*effects, Send(sender, found)]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "pages looked up": (self._pages, MAX_PAGES),
            "pages looked up for a peer": (
                max(self._per_peer.values(), default=0),
                MAX_PAGES_PER_PEER,
            ),
        }


def _no_entries(ask: AskEntries, log: PartLog | None) -> Entries:
    length = _length_of(log) if log is not None else 0
    return Entries(ticket=ask.ticket, part=ask.part, offset=ask.start, length=length)


def _length_of(log: PartLog) -> int:
    """Return how far a log has come, or had come before its disk forgot a part of it."""
    return max(log.standing.state.length, log.standing.owed[1])


def _lacks_end(wanted: Selection, answer: Answer, log: PartLog, now: float) -> bool:
    """Tell whether a page would pass for the end of what is wanted, while others have more.

    In the order of offsets the requester is told the high mark, and looks again if it wants more.
    But the mark of a log that has forgotten its end, or has just been opened, is too low. Where a
    gap of one chain is filled, what is still missing is asked of others.
    """
    standing = log.standing
    is_end = answer.following is None or wanted.last > 0
    if not wanted.by_number:
        is_page = wanted.start < MAX_NUMBER  # and no question for the length of the log
        return is_page and is_end and wanted.end > standing.high and standing.is_unsure(now)
    is_gap = len(wanted.whose) == CHAIN_KEY_BYTES and wanted.upto < MAX_NUMBER
    return not is_gap and is_end and standing.is_behind(now)
