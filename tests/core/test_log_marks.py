"""Marks that storage nodes sign, and logs that disagree below a high-water mark."""

import pytest

from anabranch.core.errors import RemoteError
from anabranch.core.log_marks import JUDGE_EVERY_S, MARK_AFTER_S, Notary
from anabranch.core.machine import Notice, Send
from anabranch.core.messages import Disagree, Lead, Marked
from anabranch.core.messages.storage import Mark
from anabranch.core.store import Adopt, Copy, KeepMarks, Promise, Settle
from machines import KEYS, NODES, OTHER, PART, SIGNERS
from storage_desk import NET, Desk
from storage_logs import Log, entries, following
from storage_world import Keeper, StorageWorld

ONE, TWO = NODES[1], NODES[2]
COMMON, LENGTH = 5, 20


def mark(place: int, log: Log, high: int, epoch: int = 1, network: bytes = NET) -> Mark:
    """A mark that a node has signed of a log."""
    notary = Notary(network, SIGNERS[place], KEYS.verify)
    return notary.sign(PART, epoch, high, high, log.hashes[high])


def two_logs() -> tuple[Log, Log]:
    """Two logs that are the same at the beginning."""
    common = entries(1, COMMON)
    return (
        Log([*common, *entries(1, LENGTH - COMMON, number=2)]),
        Log([*common, *entries(1, LENGTH - COMMON, number=3)]),
    )


class Divided(StorageWorld):
    """Storage nodes that do not agree on what is settled."""

    def _check(self, keeper: Keeper) -> None: ...

    def fill(self, place: int, log: Log, *marks: Mark) -> None:
        """Let a node's disk have a log, all of it settled, and some marks."""
        whole = [Copy(PART, 0, tuple(log.entries)), Settle(PART, LENGTH), Adopt(PART, 1)]
        store = self.keepers[place].store
        store.write([Promise(PART, 1, ONE), *whole, KeepMarks(PART, marks)])

    def kinds(self, place: int) -> set[str]:
        """Return the notices of a node."""
        return {notice.kind for notice in self.keepers[place].notices}


@pytest.mark.parametrize("seed", range(6))
def test_log_that_contradicts_marks_of_a_majority_is_replaced(seed: int) -> None:
    wrong, right = two_logs()
    world = Divided(3, seed)
    world.fill(0, wrong)
    marks = (mark(1, right, LENGTH), mark(2, right, LENGTH))
    world.fill(1, right, *marks)
    world.fill(2, right, *marks)
    world.start(0, 1, 2)
    world.run(30.0)
    for place in range(3):
        assert [frame for _, frame in world.log(place)][:LENGTH] == [
            entry.frame for entry in right.entries
        ]
        assert world.status(place).lost is None
        assert not world.status(place).disagrees
    assert world.state(0).hash == world.state(1).hash
    assert "log-contradicted" in world.kinds(0)
    assert "log-contradicted" not in world.kinds(1) | world.kinds(2)


@pytest.mark.parametrize("seed", range(6))
def test_logs_that_no_majority_has_signed_for_are_both_reported_and_stay(seed: int) -> None:
    one, other = two_logs()
    world = Divided(3, seed)
    world.fill(0, one, mark(0, one, LENGTH))
    world.fill(1, other, mark(1, other, LENGTH), mark(2, other, COMMON))
    world.start(0, 1)
    world.run(30.0)
    for place, log in ((0, one), (1, other)):
        assert [frame for _, frame in world.log(place)] == [e.frame for e in log.entries]
        assert world.kinds(place) == {"log-diverged"}
        assert world.status(place).disagrees == (NODES[1 - place],)


def test_marks_of_strangers_and_of_other_logs_decide_nothing() -> None:
    mine, other = two_logs()
    desk = following(mine, 1, 2, high=LENGTH)
    stranger = mark(7, other, LENGTH)
    desk.hear(ONE, Disagree(PART, (stranger,)))
    desk.settle()
    assert desk.status.lost is None
    for forged in (
        Mark(TWO, 1, LENGTH, LENGTH, other.hashes[LENGTH], bytes(64)),
        mark(2, other, LENGTH, network=b"another"),
        Notary(NET, SIGNERS[2], KEYS.verify).sign(OTHER, 1, 5, 5, b"h" * 32),
    ):
        with pytest.raises(RemoteError, match="mark"):
            desk.hear(ONE, Disagree(PART, (forged,)))
    assert desk.status.lost is None


def test_one_node_that_signs_twice_is_no_majority() -> None:
    mine, other = two_logs()
    desk = following(mine, 1, 2, high=LENGTH)
    desk.wait(JUDGE_EVERY_S)
    desk.hear(ONE, Disagree(PART, (mark(1, other, LENGTH - 1), mark(1, other, LENGTH))))
    desk.settle()
    assert desk.status.lost is None
    desk.wait(2 * JUDGE_EVERY_S)
    effects = desk.hear(ONE, Disagree(PART, (mark(2, other, LENGTH),)))
    effects += desk.settle()
    assert desk.status.lost is not None
    assert desk.status.high == 0, "readers see nothing of a wrong log"
    assert "log-contradicted" in [e.kind for e in effects if type(e) is Notice]


def test_marks_beyond_the_end_of_a_log_say_nothing_of_it() -> None:
    mine, other = two_logs()
    short = Log(mine.entries[:COMMON])
    desk = following(short, 1, 2, high=COMMON)
    desk.hear(ONE, Disagree(PART, (mark(1, other, LENGTH), mark(2, other, LENGTH))))
    desk.settle()
    assert desk.status.lost is None


def test_mark_is_signed_a_while_after_a_change_and_only_with_a_stamped_log() -> None:
    log = Log(entries(1, 4))
    desk = following(log, 1, 2, high=4)
    effects = desk.wait(2 * MARK_AFTER_S)
    assert not [e for e in effects if type(getattr(e, "message", None)) is Marked], "not stamped"
    desk.hear(ONE, log.page(2, 4, 4, 4, high=4))
    desk.settle()
    effects = desk.wait(2 * MARK_AFTER_S)
    sent = [e for e in effects if type(e) is Send and type(e.message) is Marked]
    assert {e.to for e in sent} == {ONE, TWO}
    signed = sent[0].message
    assert isinstance(signed, Marked)
    assert (signed.mark.epoch, signed.mark.length, signed.mark.high) == (2, 4, 4)
    assert signed.mark.hash == log.hashes[4]
    Notary(NET, SIGNERS[1], KEYS.verify).check(PART, signed.mark)
    again = desk.wait(4 * MARK_AFTER_S)
    assert not [e for e in again if type(getattr(e, "message", None)) is Marked], "nothing changed"


def test_marks_of_others_are_kept_on_the_disk_if_they_are_newer() -> None:
    log = Log(entries(1, 6))
    desk = Desk()
    desk.hear(ONE, Lead(PART, 1, 0), Marked(PART, mark(1, log, 4)))
    desk.hear(ONE, Marked(PART, mark(1, log, 2)))
    desk.wait(2.0), desk.settle()
    assert [kept.length for kept in desk.state.marks] == [4]
    with pytest.raises(RemoteError, match="mark"):
        desk.hear(ONE, Marked(PART, Mark(ONE, 1, 9, 9, b"h" * 32, bytes(64))))
