"""One storage node of three: elections, leading, and a disk that does not do as it should."""

from anabranch.core.log_standing import MAX_LEAP
from anabranch.core.machine import Effect, Notice, Send
from anabranch.core.messages import Fetch, Fetched, Lead, StorageSlowDown, Vote, Voted
from anabranch.core.messages.links import slow_down_digest
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.storage_disk import BEHIND_BYTES, MAX_UNSAVED_BYTES
from anabranch.core.store import Adopt, Keep, Order, OrderHeld, Promise, Settle, hash_after
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, PART, SIGNERS, Chain, of, sent
from storage_desk import NET, PUBLISHERS, Desk

ONE, TWO = NODES[1], NODES[2]


def chain() -> Chain:
    return Chain(PUBLISHERS[0])


def leading(size: int = 3, store: MemoryStore | None = None) -> Desk:
    """A node that was elected, with a first epoch if its store is new."""
    desk = Desk(size, store=store)
    desk.wait(3.0)
    epoch = desk.status.epoch + 1
    desk.hear(ONE, Voted(PART, epoch, True, False))
    desk.save()
    desk.hear(ONE, Voted(PART, epoch, True, True))
    desk.save()
    assert desk.status.primary == NODES[0]
    return desk


# --- Elections ------------------------------------------------------------------------------


def test_a_node_asks_before_it_stands_and_its_own_vote_is_on_the_disk_before_it_counts() -> None:
    desk = Desk()
    asked = sent(Vote, desk.wait(0.8))
    assert asked == [(node, Vote(PART, 1, 0, 0, False)) for node in (ONE, TWO)]
    assert not desk.writes, "nothing is promised yet"
    assert not desk.hear(ONE, Voted(PART, 1, True, False))
    assert desk.written == [Promise(PART, 1, NODES[0])]
    desk.hear(ONE, Voted(PART, 1, True, True))
    assert desk.status.primary is None, "with the others' votes alone it does not lead"
    votes = sent(Vote, desk.save())
    assert votes == [(node, Vote(PART, 1, 0, 0, True)) for node in (ONE, TWO)]
    assert desk.written == [Adopt(PART, 1)]
    assert desk.status.primary is None, "nor before its disk says so"
    assert sent(Lead, desk.save()) == [(node, Lead(PART, 1, 0)) for node in (ONE, TWO)]


def test_a_vote_is_on_the_disk_before_the_candidate_hears_of_it() -> None:
    desk = Desk()
    assert desk.hear(ONE, Vote(PART, 1, 0, 0, True)) == []
    assert desk.written == [Promise(PART, 1, ONE)]
    assert desk.hear(ONE, Vote(PART, 1, 0, 0, True)) == [], "nor if it asks again"
    refused = desk.hear(TWO, Vote(PART, 1, 0, 0, True))
    assert refused == [Send(TWO, Voted(PART, 1, False, True))], "two would have one epoch"
    assert desk.save() == [Send(ONE, Voted(PART, 1, True, True))]
    again = desk.hear(ONE, Vote(PART, 1, 0, 0, True))
    assert again == [Send(ONE, Voted(PART, 1, True, True))], "the first may have been lost"


def test_a_log_that_is_worth_less_gets_no_vote() -> None:
    desk = leading()
    desk.take(chain().frame(b"a", b"b"))
    desk.save()
    low, high = Vote(PART, 2, 1, 1, True), Vote(PART, 2, 1, 2, True)
    for sure in (True, False):
        vote = Vote(PART, 2, 1, 1, sure)
        assert Send(ONE, Voted(PART, 1, False, sure)) in desk.hear(ONE, vote)
    assert desk.hear(ONE, Vote(PART, 2, 0, 99, True), low) == [
        Send(ONE, Voted(PART, 1, False, True)),
        Send(ONE, Voted(PART, 1, False, True)),
    ], "a long log of an early epoch is worth less than a short one of a later"
    desk.hear(ONE, high)
    assert desk.status.primary is None, "who votes for another leads no more, from that moment"
    assert desk.save() == [Send(ONE, Voted(PART, 2, True, True))]


def test_who_hears_its_primary_would_vote_for_nobody_else_but_a_sure_vote_counts() -> None:
    desk = Desk()
    desk.hear(ONE, Lead(PART, 1, 0))
    would = Vote(PART, 2, 0, 0, False)
    assert desk.hear(TWO, would) == [Send(TWO, Voted(PART, 1, False, False))]
    desk.link(ONE, up=False)
    assert desk.hear(TWO, would) == [Send(TWO, Voted(PART, 2, True, False))]
    desk.link(ONE)
    assert desk.hear(TWO, would) == [Send(TWO, Voted(PART, 2, True, False))], "it may have died"
    desk.hear(ONE, Lead(PART, 1, 0))
    assert desk.hear(TWO, would) == [Send(TWO, Voted(PART, 1, False, False))]
    desk.save()
    desk.hear(TWO, Vote(PART, 2, 0, 0, True))
    assert Send(TWO, Voted(PART, 2, True, True)) in desk.save()


def test_a_primary_tells_who_would_stand_that_it_leads() -> None:
    desk = leading()
    answer = desk.hear(TWO, Vote(PART, 2, 1, 0, False))
    assert answer == [Send(TWO, Voted(PART, 1, False, False)), Send(TWO, Lead(PART, 1, 0))]


def test_who_leads_in_an_epoch_that_is_over_hears_of_the_later_one_and_stops() -> None:
    desk = Desk()
    desk.hear(ONE, Lead(PART, 5, 0))
    answer = desk.hear(TWO, Lead(PART, 4, 0), Fetched(PART, 4, 0, 0, 0))
    assert answer == [Send(TWO, Voted(PART, 5, False, True))] * 2
    other = leading()
    other.hear(ONE, Voted(PART, 5, False, True))
    assert (other.status.primary, other.status.epoch) == (None, 5)


def test_follower_without_a_primary_does_not_follow_one_of_an_epoch_that_is_over() -> None:
    desk = Desk()
    desk.hear(ONE, Lead(PART, 5, 0))
    desk.link(ONE, False)
    assert desk.hear(TWO, Lead(PART, 4, 0)) == [Send(TWO, Voted(PART, 5, False, True))]
    assert (desk.status.primary, desk.status.epoch) == (None, 5)
    desk.hear(TWO, Lead(PART, 5, 0))
    assert desk.status.primary == TWO


def test_a_follower_stands_when_its_primary_is_gone_and_not_before() -> None:
    desk = Desk()
    desk.hear(ONE, Lead(PART, 1, 0))
    desk.settle()
    for _ in range(5):
        assert not sent(Vote, desk.wait(4.9))
        desk.hear(ONE, Fetched(PART, 1, 0, 0, 0, NO_HASH))
        desk.settle()
    desk.link(ONE, up=False)
    assert not sent(Vote, desk.wait(1.4))
    assert sent(Vote, desk.wait(1.7))


def test_a_follower_stands_when_its_primary_says_that_it_is_none() -> None:
    desk = Desk()
    desk.hear(ONE, Lead(PART, 1, 0))
    desk.settle()
    desk.hear(ONE, Voted(PART, 1, False, True))
    assert sent(Vote, desk.wait(3.1))
    other = Desk()
    answer = other.hear(ONE, Fetch(PART, 0, 0, NO_HASH, 0, 0))
    assert answer == [Send(ONE, Voted(PART, 0, False, True))]


def test_after_a_restart_nobody_goes_on_leading_its_old_epoch() -> None:
    desk = leading()
    desk.take(chain().frame())
    desk.save()
    again = Desk(store=desk.store)
    assert (again.status.primary, again.status.length) == (None, 1)
    assert sent(Vote, again.wait(3.0))[0][1] == Vote(PART, 2, 1, 1, False)


def test_of_a_stream_that_has_moved_only_its_first_storage_nodes_begin_a_log() -> None:
    for place, votes in ((0, 0), (1, 2), (2, 0)):
        desk = Desk(place=place)
        desk.registry.state.first_storage = (ONE, NODES[9])
        desk.learn()
        assert len(sent(Vote, desk.wait(0.8))) == votes
    moved = leading()
    moved.take(chain().frame())
    moved.save()
    later = Desk(place=1, store=moved.store)  # whose log is no new one
    later.registry.state.first_storage = (NODES[9],)
    later.learn()
    assert sent(Vote, later.wait(3.0))


def test_who_waits_for_a_log_that_does_not_come_says_so_once() -> None:
    desk = Desk(size=1)
    desk.registry.state.first_storage = (ONE,)
    desk.learn()
    desk.take(chain().frame())
    desk.settle()
    assert desk.wait(25) == []
    assert [notice.kind for notice in of(Notice, desk.wait(100))] == ["no-log"]
    assert (desk.status.epoch, desk.status.held) == (0, 1)


def test_who_hears_a_primary_in_time_does_not_complain_that_there_is_no_log() -> None:
    desk = Desk(place=2)
    desk.registry.state.first_storage = (NODES[0],)
    desk.learn()
    desk.wait(20)
    desk.hear(NODES[0], Lead(PART, 1, 0))
    desk.settle()
    desk.wait(100)
    desk.link(NODES[0], up=False)
    assert of(Notice, desk.wait(20)) == []
    assert [notice.kind for notice in of(Notice, desk.wait(20))] == ["no-log"]


def test_an_epoch_that_is_far_ahead_is_not_believed() -> None:
    desk = leading()
    far = 1 + MAX_LEAP + 1
    words = (
        Vote(PART, far, 9, 9, True),
        Voted(PART, far, False, True),
        Lead(PART, far, 0),
        Fetch(PART, far, 0, NO_HASH, 0, far),
        Fetched(PART, far, 0, 0, 0),
    )
    assert desk.hear(TWO, *words) == []
    assert (desk.status.epoch, desk.status.primary, desk.writes) == (1, NODES[0], [])
    desk.hear(TWO, Voted(PART, far - 1, False, True))
    assert (desk.status.epoch, desk.status.primary) == (far - 1, None)


# --- Leading --------------------------------------------------------------------------------


def test_one_alone_leads_at_once_and_settles_what_is_on_its_disk() -> None:
    desk = Desk(size=1)
    desk.wait(0.0)
    desk.settle()
    desk.take(chain().frame(b"a", b"b"))
    assert desk.status.high == 0
    desk.save()
    assert desk.status.high == desk.status.length == 2


def test_what_was_held_gets_a_place_first_and_what_comes_meanwhile_goes_in_one_write() -> None:
    row = chain()
    frames = [row.frame() for _ in range(5)]
    desk = Desk()
    desk.take(frames[0])
    assert [type(write) for write in desk.written] == [Keep]
    desk.save()
    epoch = leading(store=desk.store)
    epoch.save()
    assert epoch.log == frames[:1]
    epoch.take(*frames[1:])
    assert [write.frames for write in epoch.written if type(write) is Order] == [tuple(frames[1:2])]
    epoch.save()
    assert [write.frames for write in epoch.written if type(write) is Order] == [tuple(frames[2:])]
    epoch.save()
    assert epoch.log == frames
    assert not any(type(write) is OrderHeld for write in epoch.written)


def test_followers_are_sent_what_is_on_the_disk_and_it_is_settled_when_one_has_it() -> None:
    desk = leading()
    row = chain()
    first = desk.hear(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 1))
    assert sent(Fetched, first) == [(ONE, Fetched(PART, 1, 0, 0, 0, NO_HASH))]
    assert desk.take(row.frame()) == []
    [(to, page)] = sent(Fetched, desk.save())
    assert (to, page.offset, [entry.epoch for entry in page.entries]) == (ONE, 0, [1])
    assert desk.status.high == 0, "it is on one disk of three"
    desk.take(row.frame())
    assert sent(Fetched, desk.save()) == [], "one page at a time"
    state = desk.state
    told = desk.hear(ONE, Fetch(PART, 1, 1, page_end(page), 0, 1))
    assert desk.status.high == 1
    [(_, rest)] = sent(Fetched, told)
    assert (rest.offset, rest.high, len(rest.entries)) == (1, 1, 1)
    last = sent(Fetched, desk.hear(ONE, Fetch(PART, 1, 2, state.hash, 1, 1)))
    assert [(page.offset, page.high, page.entries) for _, page in last] == [(2, 2, ())]
    assert desk.state.high == 0, "the disk may learn of it later"
    desk.wait(1.1)
    assert desk.written == [Settle(PART, 2)]


def test_idle_question_that_meets_an_entry_on_its_way_does_not_get_it_twice() -> None:
    desk = leading()
    idle = Fetch(PART, 1, 0, NO_HASH, 0, 1)
    desk.hear(ONE, idle)
    desk.take(chain().frame())
    assert [len(page.entries) for _, page in sent(Fetched, desk.save())] == [1]
    desk.wait(0.1)
    assert desk.hear(ONE, idle) == []
    [(_, again)] = sent(Fetched, desk.wait(1.0))
    assert len(again.entries) == 1, "the first page may be lost"
    desk.wait(0.5)
    desk.hear(ONE, Fetch(PART, 1, 1, page_end(again), 0, 1))
    assert desk.status.high == 1


def page_end(page: Fetched) -> bytes:
    return hash_after(page.hash, page.offset, page.entries[0])


def test_a_wrong_hash_a_wrong_epoch_and_a_log_before_the_epoch_count_for_nothing() -> None:
    old = leading()
    row = chain()
    old.take(row.frame(b"a"))
    old.save()
    first = old.state
    old.take(row.frame(b"b"))
    old.save()
    before = old.state
    desk = leading(store=old.store)
    desk.take(chain().frame(b"c", at=desk.now + 1))
    desk.save()
    assert (desk.status.epoch, desk.status.length) == (2, 3)
    desk.hear(ONE, Fetch(PART, 2, 3, b"x" * 32, 0, 2))
    desk.hear(ONE, Fetch(PART, 1, 3, desk.state.hash, 0, 1))
    desk.hear(ONE, Fetch(PART, 2, 1, first.hash, 0, 2))
    desk.hear(TWO, Fetch(PART, 2, 1, first.hash, 0, 2))
    desk.look()
    assert desk.status.high == 0, "their logs are not stamped with this epoch yet"
    desk.hear(ONE, Fetch(PART, 2, 2, before.hash, 0, 2))
    desk.look()
    assert desk.status.high == 2, "that is where the epoch began"


def test_what_may_have_been_lost_is_said_again() -> None:
    desk = leading()
    assert {to for to, _ in sent(Lead, desk.wait(1.0))} == {ONE, TWO}
    desk.hear(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 1))
    desk.take(chain().frame())
    pages = sent(Fetched, desk.save())
    again = desk.wait(2.0)
    desk_again = desk.settle() + again
    assert sent(Fetched, desk_again)[0] == pages[0]
    assert {to for to, _ in sent(Lead, again)} == {TWO}


# --- A disk that fails ----------------------------------------------------------------------


def test_nothing_is_lost_or_acknowledged_when_writes_fail_and_all_goes_on_later() -> None:
    desk = leading()
    row = chain()
    frames = [row.frame() for _ in range(3)]
    desk.take(frames[0])
    notices = [(n.kind, n.detail) for n in of_notice(desk.save("the disk is full"))]
    assert notices == [("storage-full", "the disk is full")]
    assert desk.machine.problem == "the disk is full"
    desk.take(*frames[1:])
    assert desk.writes == [], "it is tried again in a second, not with every frame"
    desk.wait(1.0)
    assert of_notice(desk.save("the disk is full")) == [], "once is enough"
    desk.wait(1.0)
    desk.save()
    assert desk.log == frames
    assert desk.machine.problem == ""
    assert desk.machine.sizes()["unsaved bytes"][0] == 0


def of_notice(effects: list[Effect]) -> list[Notice]:
    return of(Notice, effects)


def test_a_primary_that_cannot_write_lets_another_one_lead() -> None:
    desk = leading()
    desk.take(chain().frame())
    for _ in range(7):
        desk.save("no")
        desk.wait(1.0)
    assert desk.status.primary is None
    assert desk.hear(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 1)) == [
        Send(ONE, Voted(PART, 1, False, True))
    ]
    for _ in range(10):
        desk.save("no")
        assert not sent(Vote, desk.wait(1.0)), "nor does it stand again"
    desk.save()
    assert sent(Vote, desk.settle() + desk.wait(6.0))


def test_a_disk_that_never_answers_is_as_bad() -> None:
    desk = leading()
    desk.take(chain().frame())
    desk.wait(4.9)
    assert desk.status.primary == NODES[0]
    desk.wait(0.2)
    assert desk.status.primary is None


def test_one_alone_goes_on_leading_whatever_its_disk_does() -> None:
    desk = Desk(size=1)
    desk.wait(0.0)
    desk.settle()
    desk.take(chain().frame())
    for _ in range(9):
        desk.save("no")
        desk.wait(1.0)
    desk.save()
    assert desk.status.high == 1


def test_storage_behind_its_disk_asks_publishers_to_rest() -> None:
    desk = leading()
    desk.neighbours = NODES[20:23]
    row, content = Chain(SIGNERS[30]), bytes(1 << 18)
    effects: list[Effect] = []
    while not (words := sent(StorageSlowDown, effects)):
        effects += desk.take(row.frame(content))
    size, bound = desk.machine.sizes()["unsaved bytes"]
    assert BEHIND_BYTES < size < BEHIND_BYTES + 2 * len(content) < bound
    assert [to for to, _ in words] == NODES[20:23]
    word = words[0][1]
    digest = slow_down_digest(NET, PART, NODES[0], word.pause_ms, word.at_ms)
    assert KEYS.verify(NODES[0], digest, word.signature)
    assert sent(StorageSlowDown, desk.take(row.frame(content))) == []
    desk.now += 0.05
    assert len(sent(StorageSlowDown, desk.take(row.frame(content)))) == 3
    desk.settle()
    desk.now += 0.05
    assert sent(StorageSlowDown, desk.take(row.frame(content))) == []


def test_what_does_not_fit_into_memory_is_dropped_and_counted() -> None:
    desk = leading()
    row = Chain(SIGNERS[30])
    content = bytes(1 << 18)
    effects = [e for _ in range(260) for e in desk.take(row.frame(content))]
    assert desk.machine.dropped > 0
    assert [notice.kind for notice in of_notice(effects)] == ["storage-dropped"]
    size, bound = desk.machine.sizes()["unsaved bytes"]
    assert bound == MAX_UNSAVED_BYTES >= size > bound - len(content) - 1_000
    desk.settle()
    assert len(desk.log) == 260 - desk.machine.dropped
