"""Signed marks: what storage nodes of a stream have told each other of their logs.

A storage node signs now and then how far its log has come: the epoch that it is stamped with, its
length, the high-water mark and the log's hash there. The others keep the newest mark of each. A
mark has two uses. A node that was restored from an old copy is shown its own mark, which nobody
else can have signed, and learns that it has forgotten something (log_recovery.py). And where two
logs disagree below a high-water mark, the log that contradicts marks of a majority is the wrong
one: it is replaced.

A node signs only while its log is stamped with the epoch that it has promised. A log is not cut as
long as that is so, so a later mark of a node never ranks below an earlier one.

What is signed is the SHA-256 of

    domain | length (2) | network | length (2) | stream | partition (1) | node (20)
    | epoch (8) | length (8) | high-water mark (8) | hash (32)
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import partial

from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Notice, Send
from anabranch.core.messages import Disagree, Marked
from anabranch.core.messages.storage import MAX_MARKS, Mark
from anabranch.core.storage_disk import Look
from anabranch.core.store import Answer, HashAt, KeepMarks

MARK_AFTER_S = 2.0  # how long after a change a mark is signed
JUDGE_EVERY_S = 1.0  # how often the own log is held against marks

UNSETTLED = (
    "a settled part of the log is not the same as with another storage node, and no majority has "
    "signed for either: both keep what they have"
)
CONTRADICTED = (
    "the log contradicts what a majority of the storage nodes has signed: it is replaced by theirs"
)

_DOMAIN = b"anabranch log mark v1\0"


class Notary:
    """Signs marks, and checks those of others."""

    def __init__(self, network: bytes, signer: Signer, verify: Verify) -> None:
        self._network = network
        self._signer = signer
        self._verify = verify

    def sign(self, part: StreamPart, epoch: int, length: int, high: int, hashed: bytes) -> Mark:
        """Return a signed mark of this node."""
        mark = Mark(self._signer.node, epoch, length, high, hashed, bytes(64))
        signature = self._signer.sign(self._digest(part, mark))
        return Mark(mark.node, epoch, length, high, hashed, signature)

    def check(self, part: StreamPart, mark: Mark) -> None:
        """Raise RemoteError unless the mark's node has signed it."""
        if not self._verify(mark.node, self._digest(part, mark), mark.signature):
            raise RemoteError("mark", "not signed by its storage node")

    def _digest(self, part: StreamPart, mark: Mark) -> bytes:
        name = part.stream.encode()
        digest = hashlib.sha256(_DOMAIN)
        digest.update(len(self._network).to_bytes(2) + self._network)
        digest.update(len(name).to_bytes(2) + name + bytes([part.partition]) + mark.node)
        digest.update(mark.epoch.to_bytes(8) + mark.length.to_bytes(8))
        digest.update(mark.high.to_bytes(8) + mark.hash)
        return digest.digest()


class Marks:
    """The newest mark of each storage node of one part, and the use of them in a dispute."""

    def __init__(self, standing: Standing, find: Look, notary: Notary) -> None:
        self._standing = standing
        self._find = find
        self._notary = notary
        self._of: dict[NodeId, Mark] = {mark.node: mark for mark in standing.state.marks}
        self._is_saved = True
        self._is_looking = False
        self._judged_at = 0.0
        self._complaints: dict[str, None] = {}  # kinds, each of which is said once
        self.at: float | None = None  # when to sign the next one

    def __len__(self) -> int:
        return len(self._of)

    def of(self, node: NodeId) -> Mark | None:
        """Return the newest mark of a node."""
        return self._of.get(node)

    # --- Signing and keeping --------------------------------------------------------------

    def arm(self, now: float) -> None:
        """Let a mark be signed in a while if the log has changed since the last one."""
        if self.at is None and self._is_due():
            self.at = now + MARK_AFTER_S

    def _is_due(self) -> bool:
        standing, state = self._standing, self._standing.state
        is_firm = state.log_epoch == standing.epoch == state.epoch and state.log_epoch > 0
        if not is_firm or standing.is_recovering or len(standing.members) < 2 or not state.length:
            return False
        last = self._of.get(standing.me)
        now = (state.log_epoch, state.length, standing.high)
        return last is None or (last.epoch, last.length, last.high) != now

    def wake(self, now: float) -> list[Effect]:
        """Sign how the log stands."""
        self.at = None
        standing, state = self._standing, self._standing.state
        if not self._is_due() or self._is_looking:
            return []
        if standing.high == state.length:
            return self._sign(state.log_epoch, state.length, standing.high, state.hash)
        self._is_looking = True
        mark = (state.log_epoch, state.length, standing.high)
        return [self._find(HashAt(state.part, standing.high), partial(self._found_high, mark))]

    def _found_high(self, mark: tuple[int, int, int], answer: Answer, now: float) -> list[Effect]:
        self._is_looking = False
        epoch, length, high = mark
        if not answer.hash or self._standing.state.log_epoch != epoch or not self._is_due():
            return []
        return self._sign(epoch, length, high, answer.hash)

    def _sign(self, epoch: int, length: int, high: int, hashed: bytes) -> list[Effect]:
        standing = self._standing
        mark = self._notary.sign(standing.part, epoch, length, high, hashed)
        self._keep(mark)
        return [Send(node, Marked(standing.part, mark)) for node in standing.fellows]

    def take(self, marks: Iterable[Mark]) -> None:
        """Keep marks of the stream's storage nodes; RemoteError if one is forged."""
        for mark in marks:
            if mark.node not in self._standing.members:
                continue
            last = self._of.get(mark.node)
            if last is not None and _order(last) >= _order(mark):
                continue
            self._notary.check(self._standing.part, mark)
            self._keep(mark)

    def _keep(self, mark: Mark) -> None:
        self._of[mark.node] = mark
        self._is_saved = False
        members = self._standing.members
        self._of = {node: kept for node, kept in self._of.items() if node in members}
        assert len(self._of) <= MAX_MARKS

    def write(self) -> KeepMarks | None:
        """Return what is to be written, once; None: all of it is on the disk, or on its way."""
        if self._is_saved:
            return None
        self._is_saved = True
        return KeepMarks(self._standing.part, tuple(self._of.values()))

    @property
    def is_unsaved(self) -> bool:
        """Whether there are marks that are not on their way to the disk."""
        return not self._is_saved

    def failed(self) -> None:
        """What was to be written was not."""
        self._is_saved = False

    # --- Logs that disagree below a high-water mark ---------------------------------------

    def disagree(self, other: NodeId, now: float) -> list[Effect]:
        """Exchange marks with a node whose log differs below a high-water mark, and judge."""
        word = Disagree(self._standing.part, tuple(self._of.values()))
        return [Send(other, word), *self._judge(other, now)]

    def disagreed(self, sender: NodeId, word: Disagree, now: float) -> list[Effect]:
        """Hear that another node's log is another than ours."""
        self.take(word.marks)
        effects: list[Effect] = []
        if not word.is_answer:
            mine = Disagree(self._standing.part, tuple(self._of.values()), True)
            effects.append(Send(sender, mine))
        return effects + self._judge(sender, now)

    def _judge(self, other: NodeId, now: float) -> list[Effect]:
        """Look whether our log contradicts what a majority has signed."""
        standing, state = self._standing, self._standing.state
        if standing.is_contradicted or now < self._judged_at + JUDGE_EVERY_S:
            return []
        self._judged_at = now
        marks = [
            mark
            for mark in self._of.values()
            if mark.node in standing.members and state.start <= mark.high <= state.length
        ]
        return self._look(other, marks, 0, state.hash)

    def _look(self, other: NodeId, marks: list[Mark], against: int, end: bytes) -> list[Effect]:
        """Look our log's hash up at each of the marks, one after the other."""
        if not marks or self._standing.state.hash != end:
            return self._judged(other, against)
        then = partial(self._found, other, marks, against, end)
        return [self._find(HashAt(self._standing.part, marks[0].high), then)]

    def _found(
        self,
        other: NodeId,
        marks: list[Mark],
        against: int,
        end: bytes,
        answer: Answer,
        now: float,
    ) -> list[Effect]:
        # Without a hash nothing is known of that place: it is damaged, or deleted by now.
        is_against = bool(answer.hash) and answer.hash != marks[0].hash
        return self._look(other, marks[1:], against + is_against, end)

    def _judged(self, other: NodeId, against: int) -> list[Effect]:
        standing = self._standing
        if against >= standing.majority and len(standing.members) > 1:
            standing.contradict()
            return self._complain("log-contradicted", CONTRADICTED)
        standing.disagrees[other] = None
        return self._complain("log-diverged", UNSETTLED)

    def _complain(self, kind: str, hint: str) -> list[Effect]:
        if kind in self._complaints:
            return []
        self._complaints[kind] = None
        return [Notice(self._standing.part, kind, hint)]


def _order(mark: Mark) -> tuple[int, int, int]:
    return mark.epoch, mark.length, mark.high


Disagrees = Callable[[NodeId, float], list[Effect]]
