"""Storage nodes whose disks forget: what they do not do, and how they come back."""

import random

import pytest

from anabranch.core.log_marks import Notary
from anabranch.core.log_recovery import ASK_S, QUIET_S
from anabranch.core.machine import LossAccepted, Notice
from anabranch.core.messages import (
    AskEntries,
    AskRank,
    Entries,
    Fetch,
    Lead,
    Ranked,
    Vote,
    Voted,
)
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import Mark, Selection
from anabranch.core.store import (
    AcceptLoss,
    Adopt,
    Copy,
    Doubt,
    HashAt,
    Loss,
    Owe,
    Page,
    Promise,
    Settle,
)
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, PART, SIGNERS
from storage_desk import NET, Desk
from storage_logs import Log, entries
from storage_world import Faults, StorageWorld

ONE, TWO = NODES[1], NODES[2]
ME = NODES[0]


def filled(length: int, log_epoch: int = 1, kept: int | None = None) -> MemoryStore:
    """A disk with a log of single messages, of which it has forgotten all but some."""
    store = MemoryStore()
    log = Log(entries(log_epoch, length))
    whole = [Copy(PART, 0, tuple(log.entries)), Settle(PART, length), Adopt(PART, log_epoch)]
    store.write([Promise(PART, log_epoch, ONE), *whole])
    if kept is not None:
        store.forget(PART, kept)
    return store


def told(length: int, log_epoch: int = 1, whole: bool = True, mark: Mark | None = None) -> Ranked:
    """Say how another log stands, which is not looked into."""
    return Ranked(PART, log_epoch, log_epoch, 0, length, b"h" * 32, whole, mark)


def signed(length: int, epoch: int = 1, place: int = 0) -> Mark:
    """A mark that a node has signed."""
    notary = Notary(NET, SIGNERS[place], KEYS.verify)
    return notary.sign(PART, epoch, length, length, b"h" * 32)


def granted(effects: list[object]) -> list[bool]:
    """Return the votes among effects."""
    found = [getattr(effect, "message", None) for effect in effects]
    return [message.granted for message in found if type(message) is Voted]


# --- Below its record -----------------------------------------------------------------------


def test_log_below_its_record_gets_no_vote_from_its_node_and_does_not_lead() -> None:
    desk = Desk(store=filled(10, kept=4))
    assert desk.status.lost is not None
    assert (desk.status.lost.start, desk.status.lost.end) == (4, 10)
    asked = desk.hear(ONE, Vote(PART, 7, 9, 99, False), Vote(PART, 7, 9, 99, True))
    assert granted([*asked, *desk.settle()]) == [False, False]
    waited = desk.wait(20.0)
    assert not [e for e in waited if type(getattr(e, "message", None)) is Vote]


def test_promise_that_the_log_forgot_is_kept_by_its_record() -> None:
    store = filled(10)
    store.write([Promise(PART, 5, ONE)])
    store.forget(PART, 10)
    desk = Desk(store=store)
    assert desk.status.epoch == 5
    assert granted(desk.hear(TWO, Vote(PART, 5, 9, 99, True))) == [False]
    assert granted(desk.hear(ONE, Vote(PART, 5, 9, 99, True))) == [True]


def test_follower_below_its_record_says_so_and_is_not_counted() -> None:
    store = filled(10, log_epoch=3, kept=4)
    desk = Desk(store=store)
    effects = desk.hear(ONE, Lead(PART, 3, 0))
    [fetch] = [e.message for e in effects if type(getattr(e, "message", None)) is Fetch]
    assert (fetch.offset, fetch.log_epoch) == (4, 0)


def test_leader_counts_only_followers_whose_log_is_stamped_with_its_epoch() -> None:
    desk = Desk(links=False)
    desk.wait(3.0)
    for node in (ONE, TWO):
        desk.link(node)
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False))
    desk.settle()
    desk.hear(ONE, Voted(PART, 1, True, True))
    desk.settle()
    assert desk.status.primary == ME
    desk.take(entries(1, 1)[0].frame)
    desk.settle()
    state = desk.state
    assert state.length == 1
    desk.hear(ONE, Fetch(PART, 1, 1, state.hash, 0, 0))
    assert desk.status.high == 0
    desk.hear(TWO, Fetch(PART, 1, 1, state.hash, 0, 1))
    assert desk.status.high == 1


def test_follower_that_has_forgotten_is_counted_no_more_until_it_is_whole() -> None:
    desk = Desk(size=5, links=False)
    for place in range(1, 5):
        desk.link(NODES[place])
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False))
    desk.hear(TWO, Voted(PART, 1, True, False))
    desk.settle()
    desk.hear(ONE, Voted(PART, 1, True, True))
    desk.hear(TWO, Voted(PART, 1, True, True))
    desk.settle()
    desk.take(entries(1, 1)[0].frame)
    desk.settle()
    hashed = desk.state.hash
    desk.hear(ONE, Fetch(PART, 1, 1, hashed, 0, 1))
    desk.hear(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 0))  # it has come back without its log
    desk.hear(TWO, Fetch(PART, 1, 1, hashed, 0, 1))
    assert desk.status.high == 0, "two of five have it on their disks, the leader among them"
    desk.hear(NODES[3], Fetch(PART, 1, 1, hashed, 0, 1))
    assert desk.status.high == 1


@pytest.mark.parametrize("first", [0, 1, 2])
def test_forgotten_tail_is_copied_and_no_offset_changes(first: int) -> None:
    """The node that was away comes first with the one that forgot; the others come later."""
    world = StorageWorld(3, seed=first)
    world.start(0, 1, 2)
    world.run(5.0)
    world.stop(2)
    for _ in range(40):
        world.publish(0, 1)
        world.run(0.1)
    world.run(5.0)
    assert world.high > 20
    world.stop(0), world.stop(1)
    world.keepers[1].store.forget(PART, world.high // 3)
    world.start(1, 2)
    for _ in range(10):
        world.publish(1, 2)
        world.run(1.0)
    assert world.primary() is None
    assert world.status(1).lost is not None
    world.start(0)
    world.run(20.0)
    world.check_end()
    assert world.status(1).lost is None


def test_two_of_three_that_forgot_get_everything_from_the_third() -> None:
    world = StorageWorld(3, seed=4)
    world.start(0, 1, 2)
    world.run(5.0)
    for _ in range(40):
        world.publish()
        world.run(0.1)
    world.run(5.0)
    for place in range(3):
        world.stop(place)
    for place in (0, 1):
        world.keepers[place].store.forget(PART, world.high // (place + 2))
    world.start(0, 1, 2)
    world.run(20.0)
    world.check_end()


def test_forgetful_nodes_copy_from_each_other_without_a_leader_until_a_loss_is_accepted() -> None:
    world = StorageWorld(3, seed=5)
    world.start(0, 1, 2)
    world.run(5.0)
    world.stop(2)
    for _ in range(40):
        world.publish(0, 1)
        world.run(0.1)
    world.run(5.0)
    high = world.high
    world.stop(0), world.stop(1)
    world.keepers[0].store.forget(PART, high // 3)
    world.keepers[1].store.forget(PART, high // 2)
    left = world.state(1).length
    world.start(0, 1)
    world.run(10.0)
    assert world.primary() is None
    assert world.state(0).length == world.state(1).length == left
    assert world.state(0).hash == world.state(1).hash
    lost = world.status(0).lost
    assert lost is not None
    assert (lost.start, lost.end, lost.is_waiting) == (left, high, True)
    world.high, world.settled = left, {at: h for at, h in world.settled.items() if at <= left}
    for keeper in world.keepers:
        keeper.unsaved = []  # what only the forgotten parts had is given up
    world.do(world.keepers[0], lambda m: m.tell(LossAccepted(PART.stream), world.now))
    world.start(2)
    world.run(20.0)
    world.check_end()
    assert world.status(1).lost is None, "a later epoch has settled what it is to have"
    assert [(loss.start, loss.end) for loss in world.state(0).losses] == [(left, high)]
    world.stop(0)
    world.start(0)
    world.run(10.0)
    assert world.status(0).lost is None, "what it had signed of the lost part is void"


def test_single_storage_node_that_forgot_gives_no_offsets_until_its_loss_is_accepted() -> None:
    desk = Desk(size=1, store=filled(10, kept=4))
    desk.take(entries(1, 1, number=3)[0].frame)
    desk.settle()
    desk.wait(30.0)
    desk.settle()
    assert desk.state.length == 4
    lost = desk.status.lost
    assert lost is not None
    assert (lost.start, lost.end, lost.is_waiting) == (4, 10, True)
    desk.tell(LossAccepted(PART.stream))
    loss = Loss(4, 10, int(desk.now * 1000))
    assert AcceptLoss(PART, loss) in desk.written
    desk.wait(10.0)  # the disk is slow: it is not accepted a second time meanwhile
    notices = [e.kind for e in desk.settle() if type(e) is Notice]
    assert notices == ["loss-accepted"]
    desk.wait(2.0), desk.settle(), desk.wait(2.0), desk.settle()
    assert (desk.state.length, desk.state.losses, desk.status.lost) == (5, (loss,), None)


def test_node_that_claims_more_than_it_gives_keeps_nobody_from_copying() -> None:
    boast = told(99, log_epoch=9)
    source = filled(10)
    whole = [row.entry for row in source.find(Page(PART, Selection(), 10, 1 << 30)).placed]
    [end] = [s.hash for s in source.states()]
    honest = Ranked(PART, 1, 1, 0, 10, end, True)
    desk = Desk(store=filled(10, kept=4), answers=False)
    assert desk.state.length == 4
    for _ in range(40):
        for effect in [*desk.wait(0.5), *desk.settle()]:
            message = getattr(effect, "message", None)
            if type(message) is AskRank:
                desk.hear(effect.to, boast if effect.to == ONE else honest)
            if type(message) is AskEntries and effect.to == TWO:
                at = message.start
                hashed = source.find(HashAt(PART, at)).hash
                some = tuple(whole[at : at + 2])
                desk.hear(TWO, Entries(message.ticket, PART, at, hashed, some))
            desk.settle()
    assert desk.state.length == 10
    assert desk.status.lost is None


def test_loss_is_not_accepted_while_another_node_has_more() -> None:
    desk = Desk(store=filled(10, kept=4), links=False, answers=False)
    desk.wait(QUIET_S + 1)
    desk.link(ONE)
    desk.tell(LossAccepted(PART.stream))
    assert desk.written == [], "it has not been heard yet what the other node has"
    desk.hear(ONE, told(8))
    assert AcceptLoss not in map(type, desk.written)


def test_loss_of_a_whole_log_cannot_be_accepted() -> None:
    desk = Desk(store=filled(10))
    desk.settle()
    assert desk.tell(LossAccepted(PART.stream)) == []
    assert AcceptLoss not in map(type, desk.written)


# --- An old copy of everything --------------------------------------------------------------


def test_node_asks_all_others_before_its_first_vote() -> None:
    desk = Desk(store=filled(10), links=False, answers=False)
    asked = desk.link(ONE)
    assert [e.message for e in asked if type(getattr(e, "message", None)) is AskRank] == [
        AskRank(PART)
    ]
    vote = Vote(PART, 7, 1, 10, True)
    assert granted([*desk.hear(ONE, vote), *desk.settle()]) == [False]
    desk.hear(ONE, told(10))
    assert granted([*desk.hear(ONE, vote), *desk.settle()]) == [False], "another may know more"
    desk.wait(ASK_S)
    assert granted([*desk.hear(ONE, vote), *desk.settle()]) == [True]


def test_candidate_that_has_not_answered_gets_no_vote_however_late_it_is() -> None:
    desk = Desk(store=filled(10), links=False, answers=False)
    desk.link(ONE)
    desk.wait(10 * ASK_S)
    desk.settle()
    assert granted([*desk.hear(ONE, Vote(PART, 70, 1, 10, True)), *desk.settle()]) == [False]


def test_own_mark_of_later_proves_that_a_node_was_restored_from_an_old_copy() -> None:
    desk = Desk(store=filled(10), links=False, answers=False)
    desk.link(ONE)
    desk.hear(ONE, told(20, mark=signed(20)))
    assert Owe(PART, (1, 20)) in desk.written
    desk.settle()
    lost = desk.status.lost
    assert lost is not None
    assert (lost.start, lost.end) == (10, 20)
    assert granted(desk.hear(ONE, Vote(PART, 7, 1, 20, True))) == [False]
    assert Desk(store=desk.store).status.lost is not None, "its record has it now"


def test_candidate_that_learns_of_its_own_later_mark_does_not_lead() -> None:
    desk = Desk(store=filled(10), links=False, answers=False)
    for node in (ONE, TWO):
        desk.link(node)
        desk.hear(node, told(10))
    desk.wait(4.0)
    desk.hear(TWO, Voted(PART, 2, True, False))
    desk.settle()
    desk.hear(ONE, told(20, mark=signed(20)))
    desk.hear(TWO, Voted(PART, 2, True, True))
    desk.settle()
    desk.hear(TWO, Voted(PART, 2, True, True))
    assert desk.status.primary is None
    assert desk.state.log_epoch == 1


def test_mark_of_an_epoch_before_the_recorded_promise_says_nothing_against_a_log() -> None:
    """The log may have been cut since, under a later leader."""
    store = filled(10)
    store.write([Promise(PART, 2, ONE)])
    desk = Desk(store=store, links=False, answers=False)
    desk.link(ONE)
    desk.hear(ONE, told(20, mark=signed(20, epoch=1)))
    assert desk.status.lost is None


def test_forged_mark_costs_the_link_and_changes_nothing() -> None:
    desk = Desk(store=filled(10), links=False, answers=False)
    desk.link(ONE)
    forged = Mark(ME, 1, 20, 20, b"h" * 32, b"s" * 64)
    with pytest.raises(Exception, match="mark"):
        desk.hear(ONE, told(20, mark=forged))
    with pytest.raises(Exception, match="mark"):
        desk.hear(ONE, told(20, mark=signed(20, place=1)))
    assert desk.status.lost is None


def test_marks_are_exchanged_and_kept_on_the_disk() -> None:
    world = StorageWorld(3, seed=6)
    world.start(0, 1, 2)
    world.run(5.0)
    for _ in range(10):
        world.publish()
    world.run(10.0)
    for place in range(3):
        state = world.state(place)
        assert {mark.node for mark in state.marks} == set(NODES[:3])
        assert {(mark.length, mark.high) for mark in state.marks} == {(world.high, world.high)}


def test_restored_copy_that_the_others_remember_loses_nothing() -> None:
    """Two nodes with old logs could elect each other; the third refuses, and tells."""
    for seed in range(8):
        world = StorageWorld(3, seed=seed)
        world.start(0, 1, 2)
        world.run(5.0)
        for _ in range(10):
            world.publish()
        world.run(5.0)
        world.stop(2)
        copy = world.keepers[1].store.copy()
        for _ in range(20):
            world.publish(0, 1)
            world.run(0.1)
        world.run(8.0)
        for place in (0, 1):
            world.stop(place)
        world.keepers[1].store.restore(copy)
        world.start(0, 1, 2)
        world.run(20.0)
        world.check_end()


def test_restored_node_waits_for_a_majority_of_the_others() -> None:
    store = filled(10)
    store.require_recovery()
    desk = Desk(store=store, links=False, answers=False)
    for node in (ONE, TWO):
        desk.link(node)
    vote = Vote(PART, 9, 3, 40, True)
    desk.hear(ONE, told(30, log_epoch=3))
    desk.wait(QUIET_S)
    assert granted(desk.hear(ONE, vote)) == [False]
    desk.hear(TWO, told(40, log_epoch=3, whole=False))
    desk.wait(3.0)
    assert Owe not in map(type, desk.written), "one that has forgotten itself does not count"
    desk.hear(TWO, told(20, log_epoch=3))
    assert Owe(PART, (3, 30), True) in desk.written
    desk.settle()
    assert desk.status.epoch == 3
    lost = desk.status.lost
    assert lost is not None
    assert lost.end == 30
    assert granted(desk.hear(ONE, vote)) == [False]


def test_restored_node_is_whole_when_it_has_what_a_majority_of_the_others_has() -> None:
    world = StorageWorld(3, seed=7)
    world.start(0, 1, 2)
    world.run(5.0)
    for _ in range(20):
        world.publish()
    world.run(5.0)
    copy = world.keepers[1].store.copy()
    for _ in range(20):
        world.publish()
    world.run(5.0)
    world.stop(1)
    world.keepers[1].store.restore(copy)
    world.keepers[1].store.require_recovery()
    world.start(1)
    world.run(2.0)
    assert world.status(1).lost is not None
    world.run(15.0)
    world.check_end()
    assert world.status(1).lost is None
    assert not world.state(1).is_restored


def test_restored_node_without_a_log_that_others_may_know_asks_them_first() -> None:
    desk = Desk(links=False, answers=False, restored=True)
    assert Doubt(PART) in desk.written
    desk.settle()
    for node in (ONE, TWO):
        desk.link(node)
    vote = Vote(PART, 1, 0, 0, True)
    desk.wait(QUIET_S + 1)
    assert granted([*desk.hear(ONE, vote), *desk.settle()]) == [False]
    assert desk.state.is_restored, "also after another start"
    for node in (ONE, TWO):
        desk.hear(node, Ranked(PART, 0, 0, 0, 0, NO_HASH, True))
    desk.settle()
    assert not desk.state.is_restored
    assert granted([*desk.hear(ONE, vote), *desk.settle()]) == [True]


def test_restored_single_storage_node_waits_for_its_loss_to_be_accepted() -> None:
    store = filled(10)
    store.require_recovery()
    desk = Desk(size=1, store=store)
    desk.wait(30.0), desk.settle()
    assert desk.status.primary is None
    desk.tell(LossAccepted(PART.stream))
    desk.settle(), desk.wait(3.0), desk.settle()
    assert (desk.status.primary, desk.status.length, desk.status.lost) == (ME, 10, None)


def test_new_stream_of_a_restored_single_storage_node_begins_at_once() -> None:
    desk = Desk(size=1, restored=True)
    desk.settle(), desk.wait(1.0), desk.settle()
    assert desk.status.primary == ME


# --- Storms ---------------------------------------------------------------------------------


def test_crashes_of_all_nodes_at_any_moment_mark_none() -> None:
    for seed in range(6):
        world = StorageWorld(3, seed, Faults(disk_s=(0.001, 0.2), delay_s=(0.005, 0.3)))
        rng = random.Random(seed)
        world.start(0, 1, 2)
        for _ in range(15):
            for _ in range(10):
                world.publish()
                world.run(rng.uniform(0.05, 0.4))
            for place in range(3):
                world.stop(place)
            for place in range(3):
                state = world.state(place)
                assert (state.owed, state.is_restored) == ((0, 0), False)
            world.start(0, 1, 2)
        world.heal()
        world.run(25.0)
        world.check_end()


def test_one_forgetful_disk_at_a_time_loses_nothing() -> None:
    for seed in range(10):
        world = StorageWorld(3, seed, Faults(loss=0.02, missed=0.1))
        rng = random.Random(seed)
        world.start(0, 1, 2)
        world.run(3.0)
        for _ in range(6):
            for _ in range(10):
                world.publish()
                world.run(rng.uniform(0.02, 0.3))
            place = rng.randrange(3)
            world.stop(place)
            length = world.state(place).length
            if length:
                world.keepers[place].store.forget(PART, rng.randrange(length))
            world.run(rng.uniform(0.0, 4.0))
            world.start(place)
            until = world.now + 60.0
            while world.status(place).lost is not None and world.now < until:
                world.run(0.5)
            assert world.status(place).lost is None
        world.faults = Faults()
        world.run(25.0)
        for keeper in world.keepers:
            keeper.unsaved = []
        world.check_end()
