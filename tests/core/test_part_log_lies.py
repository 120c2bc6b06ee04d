"""One storage node that follows a primary whose log cannot be what it says."""

from anabranch.core.machine import Notice, Send
from anabranch.core.messages import Fetch, Fetched, Lead
from anabranch.core.store import Copy, Restart, Truncate
from machines import NODES, PART, of
from storage_logs import Log, entries, following

ONE, TWO = NODES[1], NODES[2]


def test_when_an_epoch_began_is_its_primarys_word_and_nobody_elses() -> None:
    common = entries(1, 3)
    mine = Log(common + entries(1, 2, number=2))
    primary = Log(common + entries(2, 6, number=3))
    desk = following(mine, 1, 4, high=2)
    desk.hear(ONE, primary.page(4, 9, 2, 6))
    desk.hear(TWO, Lead(PART, 4, 0))  # while the two logs are compared
    desk.look(), desk.look(), desk.look()
    copied = Copy(PART, 3, tuple(primary.entries[3:6]))
    assert desk.written == [Truncate(PART, 3), copied], "it is not stamped before all is there"


def test_what_is_settled_stays_although_the_primarys_log_is_the_same_before_it() -> None:
    common = entries(1, 2)
    mine = Log(common + entries(1, 3, number=2))
    other = Log(common + entries(2, 5, number=3))
    for begin, end in ((7, 6), (3, 3)):
        desk = following(mine, 1, 4, high=5)
        desk.hear(ONE, other.page(4, begin, 1, end))
        assert [notice.kind for notice in of(Notice, desk.settle())] == ["log-diverged"]
        assert (desk.state.hash, desk.state.high, desk.state.log_epoch) == (mine.hashes[5], 5, 1)


def test_what_is_settled_stays_although_an_epoch_is_said_to_have_begun_before_it() -> None:
    mine = Log(entries(1, 5))
    desk = following(mine, 1, 4, high=5)
    desk.hear(ONE, mine.page(4, 2, 0, 2))
    assert [notice.kind for notice in of(Notice, desk.settle())] == ["log-diverged"]
    assert (desk.state.length, desk.state.high) == (5, 5)


def test_a_log_begins_anew_only_beyond_its_end_and_what_is_not_settled_is_held_first() -> None:
    mine, primary = Log(entries(1, 6)), Log(entries(1, 9, number=3))
    desk = following(mine, 1, 2, high=2)
    page = primary.page(2, 9, 4, 6, high=6)
    anew = Fetched(PART, 2, 9, 6, 4, page.hash, True, page.entries)
    desk.hear(ONE, anew)
    desk.look(), desk.look()
    assert desk.written == [Truncate(PART, 2)]
    assert Send(ONE, Fetch(PART, 2, 2, mine.hashes[2], 2, 1)) in desk.save()
    desk.hear(ONE, anew)
    assert desk.written == [Restart(PART, 4, primary.hashes[4]), Copy(PART, 4, page.entries)]
    desk.save()
    assert (desk.status.start, desk.status.length, desk.status.high) == (4, 6, 4)
    assert desk.state.held == 4
