"""One storage node that follows: what it copies, what it takes back, when its log is stamped."""

import pytest

from anabranch.core.changes import Right
from anabranch.core.errors import RemoteError
from anabranch.core.log_marks import Notary
from anabranch.core.machine import Notice, Send
from anabranch.core.messages import Fetch, Fetched, Hand, Lead, Vote, Voted
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, Entry
from anabranch.core.storage_repair import SWEEP_S
from anabranch.core.store import (
    Adopt,
    Copy,
    Keep,
    KeepMarks,
    Order,
    Promise,
    Restart,
    Settle,
    Truncate,
)
from machines import KEYS, NODES, OTHER, PART, SIGNERS, Chain, forged, of, sent
from storage_desk import NET, PUBLISHERS, Desk, name_of
from storage_logs import NOW_MS, Log, entries, following

ONE, TWO = NODES[1], NODES[2]


def test_a_follower_copies_and_says_how_far_its_disk_goes() -> None:
    log = Log(entries(1, 4))
    desk = Desk()
    assert desk.hear(ONE, Lead(PART, 1, 0)) == [Send(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 0))]
    assert desk.written == [Promise(PART, 1, bytes(20))]
    desk.save()
    assert desk.hear(ONE, log.page(1, 0, 0, 2, high=4)) == []
    assert desk.written == [Copy(PART, 0, tuple(log.entries[:2])), Adopt(PART, 1)]
    assert desk.hear(ONE, log.page(1, 0, 0, 2), log.page(1, 0, 0, 3)) == [], "one copy at a time"
    assert desk.save() == [Send(ONE, Fetch(PART, 1, 2, log.hashes[2], 2, 1))]
    assert desk.status.high == 2, "as far as its own disk goes"
    desk.hear(ONE, log.page(1, 0, 2, 4, high=3))
    desk.save()
    assert (desk.status.high, desk.status.length, desk.state.hash) == (4, 4, log.hashes[4])


def test_a_log_is_stamped_when_it_has_all_that_the_primary_began_with_and_not_before() -> None:
    log = Log(entries(1, 6))
    desk = following(Log(log.entries[:1]), 1, 3)
    desk.hear(ONE, log.page(3, 4, 1, 3, high=6))
    assert desk.written == [Copy(PART, 1, tuple(log.entries[1:3]))]
    desk.save()
    assert (desk.state.log_epoch, desk.status.high) == (1, 0)
    desk.hear(ONE, log.page(3, 4, 3, 5, high=6))
    assert [type(write) for write in desk.written] == [Copy, Adopt]
    desk.save()
    assert (desk.state.log_epoch, desk.status.high) == (3, 5)


def test_a_log_that_is_as_long_as_the_epochs_beginning_is_stamped_by_an_empty_page() -> None:
    log = Log(entries(1, 3))
    desk = following(log, 1, 2)
    desk.hear(ONE, log.page(2, 3, 3, 3))
    assert desk.written == [Adopt(PART, 2)]
    assert desk.save() == [Send(ONE, Fetch(PART, 2, 3, log.hashes[3], 0, 2))]


def test_only_what_is_different_is_taken_back_and_in_one_write_with_what_replaces_it() -> None:
    common = entries(1, 5)
    mine = Log(common + entries(1, 3, number=2))
    primary = Log(common + entries(2, 6, number=3))
    desk = following(mine, 1, 4, high=2)
    desk.hear(ONE, primary.page(4, 9, 2, 8))
    desk.look(), desk.look(), desk.look()
    assert desk.written == [Truncate(PART, 5), Copy(PART, 5, tuple(primary.entries[5:8]))]
    assert desk.save() == [Send(ONE, Fetch(PART, 4, 8, primary.hashes[8], 2, 1))]
    assert desk.state.held == 3
    handed = sent(Hand, desk.wait(0.2) + desk.settle() + desk.wait(0.1) + desk.settle())
    assert handed == [(ONE, Hand(PART, tuple(entry.frame for entry in mine.entries[5:])))]


def test_a_page_that_brings_nothing_new_is_answered_as_the_last_word_may_have_been_lost() -> None:
    log = Log(entries(1, 6))
    desk = following(Log(log.entries[:4]), 1, 4)
    desk.wait(0.5)
    desk.hear(ONE, log.page(4, 6, 1, 4))
    fetches = desk.look() + desk.look() + desk.look()
    assert fetches == [Send(ONE, Fetch(PART, 4, 4, log.hashes[4], 0, 1))]


def test_what_is_the_same_as_far_as_a_page_goes_is_not_taken_back() -> None:
    common = entries(1, 6)
    mine = Log(common + entries(1, 3, number=2))
    primary = Log(common + entries(2, 6, number=3))
    desk = following(mine, 1, 4, high=1)
    desk.hear(ONE, primary.page(4, 12, 1, 4))
    fetches = desk.look() + desk.look() + desk.look()
    assert fetches == [Send(ONE, Fetch(PART, 4, 4, primary.hashes[4], 1, 1))]
    assert (desk.written, desk.state.length) == ([], 9)
    desk.hear(ONE, primary.page(4, 12, 4, 7))
    desk.settle()
    assert desk.state.hash == primary.hashes[7]


def test_what_goes_beyond_the_epochs_beginning_is_taken_back_with_the_stamp() -> None:
    log = Log(entries(1, 6))
    desk = following(log, 1, 2)
    desk.hear(ONE, log.page(2, 4, 0, 4))
    desk.look(), desk.look(), desk.look()
    assert desk.written == [Truncate(PART, 4), Adopt(PART, 2)]


def test_a_late_page_takes_nothing_back_from_a_log_that_is_stamped() -> None:
    log = Log(entries(1, 4))
    desk = following(log, 1, 1)
    late = [log.page(1, 0, 0, 2), log.page(1, 0, 2, 2), log.page(1, 0, 3, 3, high=9)]
    assert desk.hear(ONE, *late) == []
    assert (desk.writes, desk.finds) == ([], [])
    again = desk.wait(0.1)
    assert again == [Send(ONE, Fetch(PART, 1, 4, log.hashes[4], 0, 1))], "its last word may be lost"


def test_what_is_settled_is_never_taken_back() -> None:
    mine, primary = Log(entries(1, 4)), Log(entries(2, 6, number=3))
    desk = following(mine, 1, 4, high=3)
    desk.hear(ONE, primary.page(4, 6, 3, 6))
    effects = desk.settle()
    assert [notice.kind for notice in of(Notice, effects)] == ["log-diverged"]
    assert (desk.written, desk.state.length) == ([], 4)


COMMON, HIGH, SHARED, END = 8, 8, 5, 10  # of two logs of which one has a hole


def two_logs() -> tuple[Log, Log]:
    """Two logs that differ behind what is settled: that of a follower, and the primary's."""
    common = entries(1, COMMON)
    return (
        Log(common + entries(1, 5, number=2)),
        Log(common + entries(2, 6, number=3)),
    )


def with_hole(mine: Log, primary: Log, start: int, end: int, signed: Log | None = None) -> Desk:
    """A follower whose log lacks the entries between two offsets, and what it has signed."""
    before = following(mine, 1, 4, high=HIGH).store
    for entry in mine.entries[start:end]:
        before.damage(PART, name_of(entry.frame))
    if signed is not None:
        hashed = signed.hashes[HIGH]
        mark = Notary(NET, SIGNERS[0], KEYS.verify).sign(PART, 1, HIGH, HIGH, hashed)
        before.write([KeepMarks(PART, (mark,))])
    desk = Desk(store=before)
    desk.hear(ONE, Lead(PART, 4, len(primary.entries)))
    desk.save()
    return desk


def ask_before_hole(desk: Desk, mine: Log, primary: Log) -> None:
    """Let the primary send what follows the high-water mark; the follower asks before its hole."""
    desk.hear(ONE, primary.page(4, 14, HIGH, 14))
    asked = sent(Fetch, [*desk.look(), *desk.look(), *desk.look(), *desk.look()])
    assert (ONE, Fetch(PART, 4, SHARED, mine.hashes[SHARED], HIGH, 1)) in asked


def test_hole_around_the_high_water_mark_is_replaced_with_entries_of_the_primary() -> None:
    mine, primary = two_logs()
    desk = with_hole(mine, primary, SHARED, END, signed=mine)
    ask_before_hole(desk, mine, primary)
    desk.hear(ONE, primary.page(4, 14, SHARED, 14))
    desk.look(), desk.look(), desk.look()
    assert desk.written[:4] == [
        Truncate(PART, SHARED),
        Copy(PART, SHARED, tuple(primary.entries[SHARED:])),
        Settle(PART, HIGH),
        Adopt(PART, 4),
    ]
    desk.save()
    state = desk.state
    assert (state.hash, state.missing, state.high) == (primary.hashes[14], (), HIGH)


def test_hole_around_the_high_water_mark_is_kept_if_the_page_lacks_a_part_of_it() -> None:
    mine, primary = two_logs()
    desk = with_hole(mine, primary, SHARED, END)
    ask_before_hole(desk, mine, primary)
    desk.hear(ONE, primary.page(4, 14, SHARED, END - 1))
    desk.settle()
    assert (desk.state.length, desk.state.hash) == (13, mine.hashes[13])


def test_hole_around_the_high_water_mark_is_kept_if_the_own_mark_contradicts_the_page() -> None:
    mine, primary = two_logs()
    other = Log(primary.entries[:6] + entries(2, 8, number=4))
    desk = with_hole(mine, other, SHARED, END, signed=mine)
    ask_before_hole(desk, mine, other)
    desk.hear(ONE, other.page(4, 14, SHARED, 14))
    effects = desk.settle()
    assert [notice.kind for notice in of(Notice, effects)] == ["log-diverged"]
    assert (desk.state.length, desk.state.hash) == (13, mine.hashes[13])


def test_hole_around_the_high_water_mark_is_kept_if_the_epoch_began_before_the_mark() -> None:
    mine, primary = two_logs()
    desk = with_hole(mine, primary, SHARED, END)
    desk.hear(ONE, primary.page(4, HIGH - 1, HIGH, 14))
    desk.settle()
    desk.hear(ONE, primary.page(4, HIGH - 1, SHARED, 14))
    desk.settle()
    assert (desk.state.length, desk.state.hash) == (13, mine.hashes[13])


def test_page_is_asked_before_a_hole_once_if_the_primarys_log_is_another_there() -> None:
    mine, primary = two_logs()
    desk = with_hole(mine, primary, SHARED, END)
    ask_before_hole(desk, mine, primary)
    desk.hear(ONE, primary.page(4, 14, HIGH, 14))
    effects = desk.settle()
    assert sent(Fetch, effects) == []
    assert [notice.kind for notice in of(Notice, effects)] == ["log-diverged"]


def test_log_that_is_the_same_behind_a_hole_is_taken_back_only_where_it_differs() -> None:
    mine, primary = two_logs()
    desk = with_hole(mine, primary, 5, 8)
    desk.hear(ONE, primary.page(4, 14, 6, 14))  # it begins within the hole
    desk.look(), desk.look(), desk.look(), desk.look()
    assert desk.written[:1] == [Truncate(PART, COMMON)]
    assert [(hole.start, hole.end) for hole in desk.state.missing] == [(5, 8)]


def test_page_that_ends_in_a_hole_does_not_show_that_the_log_differs() -> None:
    mine, primary = two_logs()
    desk = with_hole(mine, primary, 3, 7)
    desk.hear(ONE, primary.page(4, 14, 1, 5))
    asked = sent(Fetch, [*desk.look(), *desk.look(), *desk.look(), *desk.look()])
    assert (ONE, Fetch(PART, 4, 3, mine.hashes[3], HIGH, 1)) in asked
    assert [write for write in desk.written if type(write) is Truncate] == []


def test_a_log_begins_anew_where_the_primarys_begins() -> None:
    mine, primary = Log(entries(1, 2)), Log(entries(1, 9, number=3))
    desk = following(mine, 1, 2)
    page = primary.page(2, 7, 5, 7, high=6)
    desk.hear(ONE, Fetched(PART, 2, 7, 6, 5, page.hash, True, page.entries))
    assert desk.written == [
        Restart(PART, 5, primary.hashes[5]),
        Copy(PART, 5, page.entries),
        Adopt(PART, 2),
    ]
    desk.save()
    assert (desk.status.start, desk.status.length, desk.status.high) == (5, 7, 6)


def test_a_page_is_void_when_a_later_epoch_was_promised() -> None:
    log = Log(entries(1, 4))
    desk = following(Log([]), 0, 1)
    desk.take(log.entries[0].frame)  # a write is under way
    desk.hear(ONE, log.page(1, 0, 0, 2))
    desk.hear(TWO, Vote(PART, 2, 1, 4, True))
    desk.save()
    assert desk.written == [Promise(PART, 2, TWO)]
    assert desk.save() == [Send(TWO, Voted(PART, 2, True, True))]
    assert desk.state.length == 0


def test_a_copy_that_came_to_the_disk_after_a_promise_is_not_spoken_of_in_the_old_epoch() -> None:
    log = Log(entries(1, 4))
    desk = following(Log([]), 0, 1)
    desk.hear(ONE, log.page(1, 0, 0, 2))
    desk.hear(TWO, Vote(PART, 2, 0, 0, True))  # our log is empty, as far as the disk has said
    assert desk.save() == []
    assert desk.state.length == 2


def test_a_page_is_void_when_what_we_ordered_ourselves_came_to_the_disk_meanwhile() -> None:
    log = Log(entries(1, 3))
    desk = Desk()
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False), Voted(PART, 1, True, True))
    desk.settle()
    desk.take(Chain(PUBLISHERS[1]).frame())
    assert [type(write) for write in desk.written] == [Order]
    desk.hear(ONE, Lead(PART, 2, 0), log.page(2, 0, 0, 2))
    desk.save()
    assert [type(write) for write in desk.written] == [Promise]
    desk.settle()
    fetch = Fetch(PART, 2, 1, desk.state.hash, 0, 1)
    assert Send(ONE, fetch) in desk.wait(0.2)


def test_a_page_of_another_part_or_of_an_epoch_to_come_is_a_fault() -> None:
    desk = following(Log([]), 0, 1)
    alien = Entry(1, NOW_MS, Chain(PUBLISHERS[0], OTHER).frame())
    for entry in (alien, *entries(2, 1), Entry(1, NOW_MS, b"x" * 300)):
        with pytest.raises(RemoteError):
            desk.hear(ONE, Fetched(PART, 1, 0, 0, 0, NO_HASH, False, (entry,)))
    assert desk.writes == []


def test_it_fetches_again_after_a_second_without_an_answer_and_else_after_five() -> None:
    desk = following(Log([]), 0, 1)
    assert len(sent(Fetch, desk.wait(3.5))) == 3
    desk.hear(ONE, Fetched(PART, 1, 0, 0, 0, NO_HASH))
    desk.settle()
    desk.hear(ONE, Fetched(PART, 1, 0, 0, 0, NO_HASH))
    assert len(sent(Fetch, desk.wait(4.9))) == 0
    assert len(sent(Fetch, desk.wait(0.2))) == 1


# --- A primary that is wrong ----------------------------------------------------------------


def test_a_page_that_has_a_frame_twice_is_dropped_and_complained_of_once() -> None:
    first, second, third = entries(1, 3)
    desk = following(Log([first]), 1, 1)
    wrong = Log([first, second, third, second])
    effects = desk.hear(ONE, wrong.page(1, 0, 1, 4))
    assert [notice.kind for notice in of(Notice, effects)] == ["log-diverged"]
    assert (desk.writes, desk.wait(4.9)) == ([], [])
    again = desk.wait(0.2)
    assert again == [Send(ONE, Fetch(PART, 1, 1, wrong.hashes[1], 0, 1))]
    assert desk.hear(ONE, wrong.page(1, 0, 1, 4)) == []
    assert desk.writes == []


def test_a_copy_of_what_has_a_place_already_fails_and_is_not_tried_again_at_once() -> None:
    good = Log(entries(1, 6))
    wrong = Log([*good.entries[:4], good.entries[2]])
    desk = following(Log(good.entries[:4]), 1, 1)
    live = Chain(PUBLISHERS[1]).frame()
    desk.hear(ONE, wrong.page(1, 0, 4, 5))
    desk.take(live)
    effects = desk.save()
    assert [notice.kind for notice in of(Notice, effects)] == ["log-diverged"]
    assert desk.machine.problem == "", "the disk is innocent"
    assert desk.written == [Keep(PART, (live,), NOW_MS)], "what is ours is kept all the same"
    desk.settle()
    for _ in range(10):
        assert desk.hear(ONE, wrong.page(1, 0, 4, 5)) == []
    assert (desk.writes, desk.state.hash, desk.state.held) == ([], good.hashes[4], 1)
    fetches = sent(Fetch, desk.wait(4.9) + desk.settle() + desk.wait(0.2))
    assert fetches == [(ONE, Fetch(PART, 1, 4, good.hashes[4], 0, 1))]
    desk.hear(ONE, good.page(1, 0, 4, 6))
    desk.settle()
    assert desk.state.hash == good.hashes[6]


def test_another_primary_is_heard_at_once_after_one_that_was_wrong() -> None:
    good = Log(entries(1, 6))
    wrong = Log([*good.entries[:4], good.entries[2]])
    desk = following(Log(good.entries[:4]), 1, 1)
    desk.hear(ONE, wrong.page(1, 0, 4, 5))
    desk.settle()
    desk.hear(TWO, Lead(PART, 2, 6), good.page(2, 6, 4, 6))
    desk.settle()
    assert desk.state.hash == good.hashes[6]


def test_a_forged_frame_in_the_primarys_log_is_a_fault_and_is_not_copied() -> None:
    first, second, third = entries(1, 3)
    desk = following(Log([first]), 1, 1)
    bad = Log([first, second, Entry(1, NOW_MS, forged(third.frame))])
    with pytest.raises(RemoteError, match="forged"):
        desk.hear(ONE, bad.page(1, 0, 1, 3))
    assert desk.writes == []
    other = following(Log(entries(1, 2, number=2)), 1, 2)
    with pytest.raises(RemoteError, match="forged"):
        other.hear(ONE, bad.page(2, 3, 0, 3))  # where the two logs have to be compared first
    assert (other.writes, other.finds) == ([], [])


def test_what_was_verified_when_it_came_is_not_verified_once_more() -> None:
    [entry] = entries(1, 1)
    taken = Entry(1, NOW_MS, forged(entry.frame))  # which would be found out
    desk = following(Log([]), 0, 1)
    desk.take(taken.frame)
    desk.settle()
    desk.hear(ONE, Log([taken]).page(1, 0, 0, 1))
    desk.settle()
    assert desk.log == [taken.frame]


def test_a_page_waits_for_the_registry_to_know_all_who_published_what_is_in_it() -> None:
    newcomer = Chain(SIGNERS[34])
    log = Log([*entries(1, 1), Entry(1, NOW_MS, newcomer.frame())])
    desk = following(Log([]), 0, 1)
    effects = desk.hear(ONE, log.page(1, 0, 0, 2))
    assert [notice.kind for notice in of(Notice, effects)] == ["log-unpermitted"]
    assert desk.hear(ONE, log.page(1, 0, 0, 2)) == []
    assert desk.writes == []
    assert sent(Fetch, desk.wait(1.1)) == [(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 0))]
    desk.registry.let(SIGNERS[34].node, Right.PUBLISH)
    desk.hear(ONE, log.page(1, 0, 0, 2))
    desk.settle()
    assert desk.state.hash == log.hashes[2]


def test_a_log_that_would_leave_no_room_for_more_is_a_fault() -> None:
    desk = following(Log([]), 0, 1)
    for offset, rows in ((1 << 62, entries(1, 1)), ((1 << 62) + 1, []), (MAX_NUMBER, [])):
        with pytest.raises(RemoteError, match="wrong-page"):
            desk.hear(ONE, Fetched(PART, 1, 0, 0, offset, NO_HASH, True, tuple(rows)))
    assert desk.writes == []


# --- Frames that the primary lacks ----------------------------------------------------------


def test_what_has_no_place_after_a_while_is_handed_to_the_primary_until_it_has_one() -> None:
    log = Log(entries(1, 3))
    frames = [entry.frame for entry in log.entries]
    desk = following(Log([]), 0, 1)
    desk.take(*frames)
    desk.settle()
    desk.hear(ONE, log.page(1, 0, 0, 1))
    desk.settle()
    assert not sent(Hand, desk.wait(1.9) + desk.settle())
    handed = sent(Hand, desk.wait(0.2) + desk.settle())
    assert handed == [(ONE, Hand(PART, tuple(frames[1:])))]
    desk.hear(ONE, log.page(1, 0, 1, 2))
    desk.settle()
    again = sent(Hand, desk.wait(1.5) + desk.settle() + desk.wait(1.5) + desk.settle())
    assert again == [(ONE, Hand(PART, (frames[2],)))]


def test_what_was_held_before_a_restart_is_found_and_handed_on() -> None:
    frames = [entry.frame for entry in entries(1, 3)]
    before = Desk()
    before.take(*frames)
    before.settle()
    desk = Desk(store=before.store)
    assert not sent(Hand, desk.wait(1.0) + desk.settle())
    desk.hear(ONE, Lead(PART, 1, 0))
    effects = []
    for _ in range(5):
        effects += desk.wait(0.1) + desk.settle()
    assert sent(Hand, effects)[0] == (ONE, Hand(PART, tuple(frames)))


def test_held_frame_that_a_walk_finds_just_after_it_came_is_not_handed_on_at_once() -> None:
    log = Log(entries(1, 2))
    first, second = (entry.frame for entry in log.entries)
    desk = following(Log([]), 0, 1)
    desk.take(first)
    desk.settle()
    desk.hear(ONE, log.page(1, 0, 0, 1))
    desk.settle()
    desk.wait(SWEEP_S - 0.1)
    desk.take(second)
    desk.settle()
    assert not sent(Hand, desk.wait(0.2) + desk.settle() + desk.wait(1.5) + desk.settle())
    handed = sent(Hand, desk.wait(0.5) + desk.settle())
    assert handed == [(ONE, Hand(PART, (second,)))]


def test_held_frame_that_a_walk_finds_is_not_handed_on_again_before_it_is_due() -> None:
    log = Log(entries(1, 1))
    desk = following(Log([]), 0, 1)
    desk.take(log.entries[0].frame)
    desk.settle()
    handed = 0
    for _ in range(100):
        handed += len(sent(Hand, desk.wait(0.1) + desk.settle()))
    assert handed == 3, "the walk finds it more often"
