"""One chain of the registry as several trackers show it: we have the union of what they have.

Until all trackers have the same changes each has an order of its own, so what was read of each is
remembered as a place in that order. The next question to a tracker begins where its own last
answer ended. It does not give away what others have told us: a tracker that hides a change cannot
know that we would notice.
"""

from collections import deque
from collections.abc import Iterable
from math import inf

import msgspec

from anabranch.core.changes import unpack_page
from anabranch.core.errors import RemoteError
from anabranch.core.history import History, roll
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId
from anabranch.core.messages import ChainPage

LAG_S = 10.0  # how long after us a tracker may learn of a change
MAX_STEPS = 64  # moments of the last while that are told apart
MAX_RESTARTS = 8  # of one read, since the tracker's order changes meanwhile

MORE, DONE, TOO_OFTEN = "more", "done", "too-often"  # what a page leaves to be done


class View(msgspec.Struct):
    """How far one tracker has shown us a chain: a place in its own order."""

    after: int
    head: bytes
    restarts: int = 0
    answered_at: float = -1.0  # when the last question was asked that was answered to the end
    suspected_at: float | None = None  # when it was asked and lacked what it should have


class FollowedChain:
    """A chain that we keep up to date, and what each tracker has shown us of it."""

    def __init__(self, chain: str, network: bytes, now: float) -> None:
        self._is_full = False  # others have more changes than we can take
        self.history = History(chain, network)
        self.known = False  # those whom we ask have answered at least once
        self.told = b""  # the head that was told last
        self.wanted_at: float | None = now  # somebody waits for a word that is not older
        self.wanted_last = now  # and somebody perhaps for one that is not older than this
        self.asked_at = -inf  # when we were last in doubt, or it was time, and asked
        self.heard_at = -inf  # when a tracker was asked that turned out to hide nothing
        self.confirmed_at = 0.0  # all whom we asked have answered what was asked then or later
        self.too_old = False
        self._views: dict[NodeId, View] = {}
        self._steps: deque[tuple[float, int]] = deque()  # since when we have how many changes

    def view(self, tracker: NodeId) -> View:
        """Return where we are with a tracker: with a new one, just before the newest change."""
        view = self._views.get(tracker)
        if view is None:
            after = max(0, self.history.height - 1)
            head = self.history.head_at(after)
            assert head is not None
            view = self._views[tracker] = View(after, head)
        return view

    def forget(self, tracker: NodeId) -> None:
        """Begin anew with a tracker, should it be asked again."""
        self._views.pop(tracker, None)

    def agrees(self, tracker: NodeId) -> bool:
        """Tell whether a tracker has shown us all that we have."""
        view = self._views.get(tracker)
        return view is not None and view.head == self.history.head

    def take(
        self, tracker: NodeId, page: ChainPage, asked_at: float, verify: Verify, now: float
    ) -> str:
        """Add what a page holds; RemoteError if it does not hold together."""
        view, history = self.view(tracker), self.history
        if page.chain != history.chain or page.after not in (0, view.after):
            raise RemoteError("wrong-page", page.chain)
        changes = unpack_page(page.changes)
        after, head = page.after + len(changes), view.head
        if after > page.height:
            raise RemoteError("wrong-page", "more changes than there are")
        if page.after != view.after:
            view.restarts += 1
            head = history.network
        before, skipped = history.height, 0
        try:
            for encoded in changes:
                skipped += self._is_one_too_many(encoded, verify)
                head = roll(head, encoded)
        finally:
            if history.height > before:
                self._grew(now)
        if after > history.height and not (skipped or self._is_full):
            raise RemoteError("wrong-page", "one change twice")
        view.after, view.head = after, head
        if after < page.height:
            if not changes:
                raise RemoteError("wrong-page", "it says that there is more, and has none")
            if view.restarts <= MAX_RESTARTS:
                return MORE
            view.restarts = 0
            return TOO_OFTEN
        is_all = after == history.height
        if head != page.head or (is_all and head != history.head):
            raise RemoteError("contradiction", page.chain)
        view.restarts = 0
        view.answered_at = asked_at
        return DONE

    def _is_one_too_many(self, encoded: bytes, verify: Verify) -> bool:
        """Add a change; a chain that somebody has filled up is no fault of who shows it to us."""
        try:
            self.history.add(encoded, verify)
        except RemoteError as error:
            if error.reason != "full":
                raise
            self._is_full = True
            return True
        return False

    def lacking_since(self, tracker: NodeId) -> float | None:
        """Return since when we have had more changes than a tracker has; None: it has them all.

        A tracker with fewer changes than we had at a time lacks one of those, whichever it has.
        """
        if self.agrees(tracker):
            return None
        after = self.view(tracker).after
        return next((at for at, height in self._steps if height > after), None)

    def heard_by(self, trackers: Iterable[NodeId]) -> float:
        """Return since when all of these have told us what they had; -1: one has told nothing."""
        views = [self._views.get(tracker) for tracker in trackers]
        return min((view.answered_at if view else -1.0 for view in views), default=-1.0)

    def _grew(self, now: float) -> None:
        """Remember when we had how much, and forget what is no use: all but one that is old."""
        if self._steps and (self._steps[-1][0] == now or len(self._steps) >= MAX_STEPS):
            self._steps.pop()
        self._steps.append((now, self.history.height))
        while len(self._steps) > 1 and self._steps[1][0] <= now - LAG_S:
            self._steps.popleft()
