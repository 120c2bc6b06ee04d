"""Who is the primary of a part's log: elections among its storage nodes.

Before a node stands for an epoch it asks whether it would be voted for (a Vote that is not sure),
so that a node which has merely lost its links does not depose a primary that works. A sure vote is
on the voter's disk before the candidate hears of it, and so is the candidate's own.
"""

import random
from collections.abc import Callable

from anabranch.core.ids import NodeId
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Notice, Send
from anabranch.core.messages import Lead, Vote, Voted
from anabranch.core.messages.storage import MAX_EPOCH
from anabranch.core.store import NOBODY

TAKEOVER_S = 1.5  # how long there may be no primary before somebody would be one
FIRST_S = 0.4  # the same, of a log that is new
SPREAD_S = 1.5  # at most so much longer, by chance: that two stand at once should be rare
ROUND_S = 1.0  # how long votes are waited for
NO_LOG_S = 30.0  # how long who has no log, and may begin none, waits before it says so

NO_LOG = "there is no primary, and no log here to go on from: start or name a node that has it"


MayVote = Callable[[NodeId, float], bool]  # whether we know enough of ourselves to vote for a node


class Election:
    """Our vote, and our own candidacy."""

    def __init__(self, standing: Standing, rng: random.Random, may_vote: MayVote) -> None:
        self._standing = standing
        self._may_vote = may_vote
        self._rng = rng
        self.at: float | None = None  # when to stand, if there is no primary until then
        self.may_begin = False  # the first epoch of a log: new nodes must not begin a second log
        self._asked = 0  # the epoch that we ask votes for; 0: we do not stand
        self._is_sure = False
        self._granted: set[NodeId] = set()
        self._since: float | None = None  # there has been no primary
        self._has_complained = False

    def wait(self, now: float) -> None:
        """Let there be an election in a while if there is no primary, and none if there is."""
        standing = self._standing
        if standing.is_primary or standing.primary is not None:
            self.at, self._asked, self._since = None, 0, None
        elif self.at is None:
            self._since = now if self._since is None else self._since
            alone = standing.majority == 1
            is_new = not standing.epoch  # there has never been a primary whom we could miss
            least, most = (FIRST_S, FIRST_S) if is_new else (TAKEOVER_S, SPREAD_S)
            wait_s = least + most * self._rng.random()
            self.at = now if alone else now + wait_s

    def wake(self, now: float) -> list[Effect]:
        """Ask whether we would be voted for."""
        standing = self._standing
        self.at = now + ROUND_S + SPREAD_S * self._rng.random()
        has_log = standing.state.log_epoch > 0 or self.may_begin
        if not has_log:
            return self._complain(now)
        if standing.epoch >= MAX_EPOCH:
            return []
        if not self._may_vote(standing.me, now):
            self.postpone(now)
            return []
        self._asked, self._is_sure, self._granted = standing.epoch + 1, False, {standing.me}
        effects = self._ask()
        self._count()
        return effects

    def asked(self, sender: NodeId, vote: Vote, now: float) -> list[Effect]:
        """Vote, or do not."""
        standing = self._standing
        fits = (vote.log_epoch, vote.length) >= standing.rank
        if not self._may_vote(sender, now):
            return [self._refusal(sender, vote.sure)]
        if not vote.sure:
            is_led = standing.is_primary or standing.primary is not None
            if fits and not is_led and vote.epoch > standing.epoch:
                return [Send(sender, Voted(standing.part, vote.epoch, True, False))]
            effects: list[Effect] = [self._refusal(sender, sure=False)]
            if standing.leads:  # it should know
                effects.append(Send(sender, Lead(standing.part, standing.epoch, standing.begin)))
            return effects
        if (vote.epoch, sender) == (standing.epoch, standing.voted):
            return self.wrote()  # our first word was lost, or is not on the disk yet
        if vote.epoch <= standing.epoch or not fits:
            return [self._refusal(sender, sure=True)]
        standing.promise(vote.epoch, sender)
        self.at, self._asked = None, 0
        return []  # the promise goes to the disk first

    def answered(self, sender: NodeId, voted: Voted) -> list[Effect]:
        """Count a vote; learn of a later epoch, or that our primary is none."""
        standing = self._standing
        if voted.granted:
            if self._asked == voted.epoch and self._is_sure == voted.sure:
                self._granted.add(sender)
                self._count()
        elif voted.epoch > standing.epoch:
            standing.promise(voted.epoch, NOBODY)
        elif voted.epoch == standing.epoch and voted.sure and standing.primary == sender:
            standing.primary = None
        return []

    def wrote(self) -> list[Effect]:
        """Our promise may have come to the disk: now it counts."""
        standing = self._standing
        if not standing.is_promised or standing.voted == NOBODY:
            return []
        if standing.voted != standing.me:
            return [Send(standing.voted, Voted(standing.part, standing.epoch, True, True))]
        if self._asked != standing.epoch or standing.me in self._granted:
            return []
        self._granted.add(standing.me)
        effects = self._ask()
        self._count()
        return effects

    def postpone(self, now: float) -> None:
        """Do not stand now, but perhaps in a while."""
        self.at, self._asked = now + ROUND_S, 0

    def cancel(self) -> None:
        """Stand no more: those who decide are others now."""
        self.at, self._asked, self._since = None, 0, None

    def _complain(self, now: float) -> list[Effect]:
        """Say once that we can only wait, which may be for ever."""
        is_due = self._since is not None and now >= self._since + NO_LOG_S
        if self._has_complained or not is_due:
            return []
        self._has_complained = True
        return [Notice(self._standing.part, "no-log", NO_LOG)]

    def _refusal(self, sender: NodeId, sure: bool) -> Effect:
        return Send(sender, Voted(self._standing.part, self._standing.epoch, False, sure))

    def _ask(self) -> list[Effect]:
        standing = self._standing
        vote = Vote(standing.part, self._asked, *standing.rank, self._is_sure)
        return [Send(node, vote) for node in standing.fellows]

    def _count(self) -> None:
        standing = self._standing
        still = standing.epoch + (not self._is_sure)  # what an election in between has changed
        if self._asked != still or standing.primary or len(self._granted) < standing.majority:
            return
        if standing.is_recovering:  # which has come to light meanwhile
            return
        if not self._is_sure:
            self._is_sure, self._granted = True, set()
            standing.promise(self._asked, standing.me)
        elif standing.voted == standing.me:
            standing.is_primary, self.at, self._asked = True, None, 0
