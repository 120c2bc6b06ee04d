"""What a storage node shows to whom."""

import pytest

from anabranch.core.changes import PUBLIC, Right
from anabranch.core.ids import number_of
from anabranch.core.log_standing import FIND_S
from anabranch.core.machine import Effect
from anabranch.core.messages import Fetch, Lead, Resend, Resent, Voted
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.storage_resends import BUSY, MAX_PAGES, MAX_PAGES_PER_PEER
from anabranch.core.store import Order, Settle
from machines import NODES, OTHER, PART, START, Chain, beyond, sent
from storage_desk import PUBLISHERS, READER, STRANGER, Desk
from storage_logs import Log, entries

ONE = NODES[1]
ALL, BY_NUMBER = Selection(), Selection(by_number=True)


def stored() -> tuple[Desk, list[bytes]]:
    """A primary with three frames, of which the first two are settled."""
    desk = Desk()
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False), Voted(PART, 1, True, True))
    desk.settle()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame(b"a", b"b"), chain.frame(b"c"), chain.frame(b"d")]
    for frame in frames[:2]:
        desk.take(frame)
        desk.save()
    desk.hear(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 1), Fetch(PART, 1, 3, desk.state.hash, 0, 1))
    desk.take(frames[2])
    desk.save()
    assert (desk.status.high, desk.status.length) == (3, 4)
    return desk, frames


def answers(effects: list[Effect]) -> list[Resent]:
    return [message for _, message in sent(Resent, effects)]


def ask(desk: Desk, who: bytes, selection: Selection = ALL, part: object = PART) -> Resent:
    effects = desk.hear(who, Resend(7, part, selection))  # type: ignore[arg-type]
    [answer] = answers(effects + desk.look())
    return answer


def test_in_the_order_of_offsets_a_reader_gets_what_is_settled() -> None:
    desk, frames = stored()
    answer = ask(desk, READER)
    assert answer == Resent(7, tuple(frames[:2]), (0, 2), None, 0, 3)
    assert ask(desk, READER, Selection(start=2)).frames == (frames[1],)
    assert ask(desk, READER, Selection(last=1)).frames == (frames[1],)
    assert ask(desk, READER, Selection(start=3)) == Resent(7, (), (), None, 0, 3)


def test_in_the_order_of_numbers_it_gets_all_but_no_offset_that_may_change() -> None:
    desk, frames = stored()
    answer = ask(desk, READER, BY_NUMBER)
    assert (answer.frames, answer.offsets) == (tuple(frames), (0, 2, MAX_NUMBER))


def test_gaps_are_filled_from_what_is_only_held_while_there_is_no_primary() -> None:
    desk = Desk()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame(), chain.frame()]
    desk.take(*frames)
    desk.settle()
    gap = Selection(whose=chain.key, upto=chain.newest, by_number=True)
    assert ask(desk, READER, gap) == Resent(7, tuple(frames), (MAX_NUMBER,) * 2, None, 0, 0)
    desk.wait(FIND_S)  # and no other storage node is there
    assert ask(desk, READER, gap).frames == tuple(frames)
    assert ask(desk, READER, BY_NUMBER).frames == tuple(frames)
    assert ask(desk, READER, ALL) == Resent(7, (), (), None, 0, 0)


UNTIL_NOW = number_of(int(START * 1000) + 9_000, 0)


@pytest.mark.parametrize(
    "to_the_end",
    [
        BY_NUMBER,
        Selection(last=1, by_number=True),
        Selection(upto=UNTIL_NOW, by_number=True),
        Selection(upto=UNTIL_NOW, whose=bytes(PUBLISHERS[0].node), by_number=True),
        Selection(upto=UNTIL_NOW, last=1, by_number=True),
    ],
)
def test_who_has_not_caught_up_sends_those_who_read_to_the_end_to_others(
    to_the_end: Selection,
) -> None:
    log, desk = Log(entries(1, 4)), Desk()
    busy = Resent(7, problem="busy")
    assert ask(desk, READER, to_the_end) == busy, "it has just come: who leads?"
    desk.hear(ONE, Lead(PART, 1, 0))
    desk.save()
    desk.hear(ONE, log.page(1, 0, 0, 2, high=4))
    desk.save()
    assert desk.status.length == 2
    assert ask(desk, READER, to_the_end) == busy, "the primary has settled more"
    assert ask(desk, READER, ALL) == Resent(
        *(7, tuple(entry.frame for entry in log.entries[:2]), (0, 1), None, 0, 2)
    ), "by offset it says how far it goes"
    desk.hear(ONE, log.page(1, 0, 2, 4, high=4))
    desk.save()
    answer = ask(desk, READER, to_the_end)
    assert answer.following is None
    assert answer.frames[-1] == log.entries[-1].frame


def test_who_follows_a_primary_that_began_with_more_has_not_caught_up() -> None:
    log, desk = Log(entries(1, 4)), Desk()
    desk.hear(ONE, Lead(PART, 1, 4))
    desk.save()
    assert ask(desk, READER, BY_NUMBER).problem == "busy"
    desk.hear(ONE, log.page(1, 4, 0, 4, high=4))
    desk.save()
    assert len(ask(desk, READER, BY_NUMBER).frames) == 4


def test_who_may_not_subscribe_gets_nothing_and_the_registry_is_asked() -> None:
    desk, _ = stored()
    assert ask(desk, STRANGER) == Resent(7, problem="unpermitted")
    assert desk.registry.doubts == 1
    assert desk.finds == []
    publisher = PUBLISHERS[0].node
    assert ask(desk, publisher).problem == "unpermitted", "who may publish need not read"


def test_who_acts_for_a_reader_everybody_if_it_is_public_and_storage_nodes_get_it() -> None:
    desk, frames = stored()
    assert ask(desk, ONE).frames == tuple(frames[:2])
    desk.users[STRANGER] = READER
    assert ask(desk, STRANGER).frames == tuple(frames[:2])
    del desk.users[STRANGER]
    assert ask(desk, STRANGER).problem == "unpermitted"
    desk.registry.let(PUBLIC, Right.SUBSCRIBE)
    assert ask(desk, STRANGER).frames == tuple(frames[:2])


def test_a_part_that_is_not_stored_is_named_so() -> None:
    desk, _ = stored()
    assert ask(desk, READER, part=OTHER) == Resent(7, problem="not-stored")
    desk.registry.name((1, 2))
    desk.learn()
    assert ask(desk, READER) == Resent(7, problem="not-stored")


def test_a_page_that_was_looked_up_while_the_node_was_removed_is_not_shown() -> None:
    desk, _ = stored()
    desk.hear(READER, Resend(8, PART, ALL))
    desk.registry.name((1, 2))
    desk.learn()
    assert answers(desk.look()) == [Resent(8, problem="not-stored")]


def test_one_reader_and_all_together_have_only_so_many_pages_looked_up_at_once() -> None:
    desk, _ = stored()
    desk.registry.let(PUBLIC, Right.SUBSCRIBE)
    many = [Resend(ticket, PART, ALL) for ticket in range(MAX_PAGES_PER_PEER + 2)]
    busy = answers(desk.hear(READER, *many))
    assert [(answer.ticket, answer.problem) for answer in busy] == [(8, "busy"), (9, "busy")]
    for number in range(MAX_PAGES):
        desk.hear(number.to_bytes(20), Resend(1, PART, ALL))  # type: ignore[arg-type]
    assert answers(desk.hear(STRANGER, Resend(1, PART, ALL)))[0].problem == "busy"
    assert not beyond(desk.machine)
    assert len(answers(desk.look())) == MAX_PAGES
    assert ask(desk, READER).problem == ""
    assert desk.machine.sizes()["pages looked up"][0] == 0


def test_a_long_history_comes_in_pages_each_of_which_selects_the_next() -> None:
    desk = Desk(size=1)
    desk.wait(0.0)
    desk.settle()
    chain = Chain(PUBLISHERS[0])
    frames = [chain.frame(bytes(100_000)) for _ in range(7)]
    desk.take(*frames)
    desk.settle()
    for selection in (ALL, BY_NUMBER):
        got: list[bytes] = []
        pages = 0
        following: Selection | None = selection
        while following is not None:
            answer = ask(desk, READER, following)
            got += answer.frames
            following, pages = answer.following, pages + 1
        assert got == frames
        assert pages == 4


def test_log_that_was_just_opened_passes_no_page_for_the_end_of_all() -> None:
    before = Desk()
    frame = Chain(PUBLISHERS[0]).frame()
    before.store.write([Order(PART, 1, 1, (frame,)), Settle(PART, 1)])
    desk = Desk(store=before.store)
    wanted = [Selection(), Selection(end=1), Selection(start=MAX_NUMBER)]
    for at, selection in enumerate(wanted):
        desk.hear(READER, Resend(at, PART, selection))
    shown = [answer for _, answer in sent(Resent, desk.look())]
    assert [answer.problem for answer in shown] == [BUSY, "", ""]
    desk.wait(FIND_S + 0.1)
    desk.settle()
    desk.hear(READER, Resend(9, PART, Selection()))
    [(_, shown_later)] = sent(Resent, desk.look())
    assert (shown_later.problem, shown_later.frames) == ("", (frame,))
