"""A reader: whole chains, checked change by change, kept up to date, and what they are for."""

from math import inf

import pytest

from anabranch.core import registry_reader
from anabranch.core.changes import (
    CreateStream,
    DeleteStream,
    EditStream,
    Right,
    SetPermission,
    SetTrackers,
)
from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Answered,
    Effect,
    Follow,
    Hold,
    Learned,
    Notice,
    Request,
    Send,
)
from anabranch.core.messages import ChainChanged, ListChains, ReadChain, WriteChange, Written
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reader import DOUBT_EVERY_S, NO_GENESIS_S
from anabranch.core.registry_reads import REFRESH_S, TOGETHER_S
from anabranch.core.registry_requests import REQUEST_S
from anabranch.core.rendezvous import trackers_for
from chains import (
    COPIER,
    ENTRIES,
    NET,
    OWNER,
    SECOND,
    STREAM,
    WRITER,
    Writer,
    created,
    page_of,
    reads,
)
from machines import NODES, SIGNERS, START, of, sent
from reading import Reading

ANN, BOB = SIGNERS[1:3]
PART = StreamPart(STREAM, 0)


# --- Reading --------------------------------------------------------------------------------


def test_it_holds_the_tracker_that_was_found_and_reads_the_network() -> None:
    reading = Reading()
    assert reading.start() == [
        Hold(WRITER, "ws://found"),
        Send(WRITER, ReadChain(1, NETWORK, 0, NET)),
        Learned(NETWORK, 1),
    ]
    assert reading.reader.network_state.genesis.owner == OWNER.node


def test_a_chain_is_followed_to_its_end_and_learned_once() -> None:
    reading = Reading()
    reading.start()
    writer = created(*(SetPermission(NODES[5], 1 + at % 2) for at in range(199)))
    assert not reading.reader.knows(STREAM)
    assert of(Learned, reading.follow(writer)) == [Learned(STREAM, 200)]
    assert reading.reader.knows(STREAM)
    assert reading.reader.history(STREAM).head == writer.history.head
    assert reading.tell(Follow(STREAM)) == [Learned(STREAM, 200)]


def test_between_two_pages_nothing_is_told_and_nobody_is_asked_twice() -> None:
    reading = Reading()
    reading.start()
    writer = created(*(SetPermission(NODES[5], 1 + at % 2) for at in range(199)))
    [asked] = reading.tell(Follow(STREAM))
    effects = reading.hear(WRITER, page_of(asked.message, writer))
    assert reads(effects) == [(WRITER, STREAM, 64)]
    assert len(effects) == 1
    assert reading.tell(Follow(STREAM)) == []
    assert reading.reader.stream(STREAM) is None
    assert not reading.reader.may(STREAM, OWNER.node, Right.PUBLISH, reading.now)
    assert reading.hear(WRITER, page_of(asked.message, writer)) == []  # that ticket is used up


def test_a_stream_that_is_not_there_has_height_nought() -> None:
    reading = Reading()
    reading.start()
    assert of(Learned, reading.follow(Writer())) == [Learned(STREAM, 0)]
    assert reading.tell(Follow("nonsense")) == [Learned("nonsense", 0)]
    assert reading.reader.directory(PART) is None
    assert not reading.reader.permits(PART, OWNER.node, START)


def test_a_push_is_read_from_who_pushed_and_from_where_we_stand() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    writer.add(SetPermission(ANN.node, 1))
    changed = ChainChanged(STREAM, 2, writer.history.head)
    effects = reading.hear(WRITER, changed)
    assert reads(effects) == [(WRITER, STREAM, 1)]
    assert of(Learned, reading.run(effects)) == [Learned(STREAM, 2)]
    assert reading.hear(WRITER, changed) == []
    assert reading.hear(NODES[9], ChainChanged(STREAM, 9)) == []
    assert reading.hear(WRITER, ChainChanged(SECOND, 9)) == []


def test_a_push_while_a_read_is_under_way_is_not_lost() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    [asked] = reading.tell(Follow(STREAM))
    old = page_of(asked.message, writer)
    assert reading.hear(WRITER, ChainChanged(STREAM, 2)) == []
    effects = reading.hear(WRITER, old)
    assert of(Learned, effects) == [Learned(STREAM, 1)]
    assert reads(effects) == [(WRITER, STREAM, 1)]


def test_every_chain_is_read_again_about_once_a_minute() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created())
    reading.wait(REFRESH_S * 0.74 - TOGETHER_S)
    reading.writers[STREAM].add(DeleteStream())
    reading.writers[NETWORK].add(SetTrackers(ENTRIES[:1]))
    effects = reading.wait(REFRESH_S * 0.52 + TOGETHER_S)
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 1), (WRITER, STREAM, 1)])
    assert {e.chain for e in of(Learned, effects)} == {NETWORK, STREAM}


def test_a_link_that_comes_back_reads_everything_again() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    assert reading.down(WRITER) == []
    writer.add(SetPermission(ANN.node, 1))
    effects = reading.up(WRITER)
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 1), (WRITER, STREAM, 1)])
    assert of(Learned, effects) == [Learned(STREAM, 2)]


def test_a_tracker_that_does_not_know_the_network_yet_is_asked_again() -> None:
    reading = Reading()
    empty = Writer(NETWORK)
    empty.history = type(empty.history)(NETWORK, NET)
    reading.stories[WRITER] = {NETWORK: empty}
    assert of(Learned, reading.start()) == []
    assert not reading.reader.knows(NETWORK)
    reading.stories.clear()
    assert of(Learned, reading.wait(NO_GENESIS_S)) == [Learned(NETWORK, 1)]


def test_a_network_that_nobody_has_shown_is_not_known_because_a_link_comes_back() -> None:
    reading = Reading()
    empty = Writer(NETWORK)
    empty.history = type(empty.history)(NETWORK, NET)
    reading.stories[WRITER] = {NETWORK: empty}
    reading.start()
    reading.down(WRITER)
    reading.deaf = {WRITER}
    assert of(Learned, reading.up(WRITER)) == []
    assert not reading.reader.knows(NETWORK)


def test_what_is_forgotten_is_read_no_more() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created())
    reading.tell(Follow(SECOND))
    reading.reader.forget(STREAM)
    reading.reader.forget(SECOND)
    reading.reader.forget(NETWORK)
    assert reading.reader.sizes()["followed chains"][0] == 1
    assert reading.reader.sizes()["registry reads"][0] == 0
    assert {chain for _, chain, _ in reads(reading.wait(2 * REFRESH_S))} == {NETWORK}
    with pytest.raises(LocalError, match="follow it first"):
        reading.reader.history(STREAM)


def test_no_more_is_followed_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_reader, "MAX_FOLLOWED", 1)
    reading = Reading()
    reading.start()
    reading.follow(created())
    effects = reading.tell(Follow(SECOND))
    assert [type(effect) for effect in effects] == [Notice, Learned]
    assert reading.reader.sizes()["followed chains"] == (2, 2)


# --- What it is for -------------------------------------------------------------------------


def test_the_directory_and_permissions_come_from_the_chain() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    expires_ms = int(START * 1000) + 500
    reading.follow(created(SetPermission(ANN.node, 1, expires_ms)))
    reader = reading.reader
    assert reader.trackers == ENTRIES
    assert reader.directory(PART).trackers == trackers_for(PART, ENTRIES)
    assert reader.directory(StreamPart(STREAM, 2)) is None
    assert reader.permits(PART, OWNER.node, START)
    assert reader.permits(PART, ANN.node, START + 0.4)
    assert not reader.permits(PART, ANN.node, START + 0.5)
    assert not reader.permits(PART, NODES[9], START)
    assert not reader.permits(StreamPart(STREAM, 2), OWNER.node, START)
    assert reader.may(STREAM, ANN.node, Right.PUBLISH, START)
    assert not reader.may(STREAM, ANN.node, Right.SUBSCRIBE, START)
    assert not reader.may(SECOND, OWNER.node, Right.SUBSCRIBE, START)
    assert not reader.may(NETWORK, OWNER.node, Right.SUBSCRIBE, START)


def test_doubt_asks_at_most_twice_a_second_and_never_in_vain() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    doubt = reading.reader.doubt
    asked = doubt(STREAM, reading.now)
    assert reads(asked) == [(WRITER, STREAM, 1)]
    assert doubt(STREAM, reading.now) == []
    assert of(Learned, reading.run(asked)) == [Learned(STREAM, 1)]  # somebody waits for this word
    reading.now += 0.1
    assert doubt(STREAM, reading.now) == []
    assert of(Learned, reading.wait(DOUBT_EVERY_S - 0.11)) == []
    assert of(Learned, reading.wait(0.02)) == [Learned(STREAM, 1)]
    assert reading.reader.confirmed_at(STREAM) == START + DOUBT_EVERY_S
    assert doubt(SECOND, reading.now) == []


def test_a_doubt_is_answered_by_what_was_asked_after_it() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    assert reading.reader.confirmed_at(STREAM) == START
    assert reading.reader.confirmed_at(SECOND) == 0.0
    reading.now += 10
    [first] = reading.reader.doubt(STREAM, reading.now)
    old = page_of(first.message, writer)
    reading.now += 1
    assert reading.reader.doubt(STREAM, reading.now) == []  # one question is under way
    [told, second] = reading.hear(WRITER, old)
    assert told == Learned(STREAM, 1)  # to who was in doubt first
    assert reading.reader.confirmed_at(STREAM) == START + 10
    [told] = reading.run([second])[1:]
    assert told == Learned(STREAM, 1)
    assert reading.reader.confirmed_at(STREAM) == START + 11


def test_a_doubt_that_has_to_wait_is_not_forgotten_when_an_older_one_is_answered() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created())
    first = reading.reader.doubt(STREAM, reading.now)
    reading.now += 0.1
    assert reading.reader.doubt(STREAM, reading.now) == []
    reading.now += 0.1
    [told] = of(Learned, reading.run(first))
    assert reading.reader.confirmed_at(STREAM) == START
    assert of(Learned, reading.wait(DOUBT_EVERY_S)) == [told]
    assert reading.reader.confirmed_at(STREAM) >= START + 0.1


def test_many_in_doubt_do_not_keep_each_other_from_an_answer() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created())
    learned = []
    for _ in range(100):
        learned += of(Learned, reading.run(reading.reader.doubt(STREAM, reading.now)))
        learned += of(Learned, reading.wait(0.05))
    assert 8 <= len(learned) <= 12


HOUR_S = 3_600


def unconfirmed(within_s: int = 0, own_s: float = inf) -> tuple[Reading, list[Effect]]:
    """Let all trackers be gone for an hour, but for a second; return what was said."""
    reading = Reading(confirm_within_s=own_s)
    reading.start(*ENTRIES[:2])
    created_ = Writer().add(CreateStream(2, confirm_within_s=within_s))
    reading.follow(created_.add(SetPermission(ANN.node, 3)))
    reading.follow(Writer(SECOND))
    for tracker in (WRITER, COPIER):
        reading.down(tracker)
    return reading, reading.wait(HOUR_S - 1)


def test_right_without_trackers_counts_until_it_expires() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    expires_ms = int((START + 24 * HOUR_S) * 1000)
    reading.follow(created(SetPermission(ANN.node, 3), SetPermission(BOB.node, 1, expires_ms)))
    for tracker in (WRITER, COPIER):
        reading.down(tracker)
    reading.wait(24 * HOUR_S - 1)
    assert reading.reader.permits(PART, ANN.node, reading.now)
    assert reading.reader.permits(PART, BOB.node, reading.now)
    reading.wait(30 * 24 * HOUR_S)
    assert reading.reader.permits(PART, ANN.node, reading.now)
    assert reading.reader.permits(PART, OWNER.node, reading.now)
    assert not reading.reader.permits(PART, BOB.node, reading.now)
    assert not reading.reader.is_unconfirmed(STREAM, reading.now)
    assert reading.reader.age_s(reading.now) == pytest.approx(31 * 24 * HOUR_S - 1, rel=1e-3)


def test_registry_without_trackers_is_said_to_be_unconfirmed_once() -> None:
    reading, effects = unconfirmed()
    effects += reading.wait(10 * HOUR_S)
    assert [notice.kind for notice in of(Notice, effects)] == ["registry-unconfirmed"]
    reading.up(COPIER)
    assert reading.reader.age_s(reading.now) < 1
    reading.down(COPIER)
    [notice] = of(Notice, reading.wait(HOUR_S))
    assert notice.kind == "registry-unconfirmed"


@pytest.mark.parametrize(("within_s", "own_s"), [(HOUR_S, inf), (0, HOUR_S), (2 * HOUR_S, HOUR_S)])
def test_right_that_has_to_be_confirmed_counts_until_then(within_s: int, own_s: float) -> None:
    reading, effects = unconfirmed(within_s, own_s)
    reader = reading.reader
    assert reader.permits(PART, ANN.node, reading.now)
    effects += reading.wait(1)
    assert not reader.permits(PART, ANN.node, reading.now)
    assert not reader.may(STREAM, OWNER.node, Right.SUBSCRIBE, reading.now)
    assert reader.is_unconfirmed(STREAM, reading.now)
    assert reader.directory(PART) is not None  # so that trackers can be found
    assert "registry-too-old" in [notice.kind for notice in of(Notice, effects)]
    assert Learned(STREAM, 2) in effects  # every decision is made anew
    assert of(Learned, reading.up(COPIER)).count(Learned(STREAM, 2)) == 1
    assert reader.permits(PART, ANN.node, reading.now)
    assert of(Notice, reading.wait(2 * HOUR_S)) == []


def test_right_that_need_not_be_confirmed_any_more_counts_again() -> None:
    reading, _ = unconfirmed(HOUR_S)
    reading.writers[STREAM].add(EditStream(confirm_within_s=0))
    reading.up(COPIER)
    reading.down(COPIER)
    reading.wait(10 * HOUR_S)
    assert reading.reader.permits(PART, ANN.node, reading.now)


def test_what_was_not_known_does_not_grow_old() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    reading.deaf = {COPIER}
    reading.follow(created())
    for tracker in (WRITER, COPIER):
        reading.down(tracker)
    assert Learned(STREAM, 1) not in reading.wait(2 * HOUR_S)
    assert not reading.reader.knows(STREAM)


# --- Writing --------------------------------------------------------------------------------


def test_what_was_written_is_read_back_at_once() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    proposal = reading.reader.propose(OWNER, STREAM, SetPermission(ANN.node, 1), reading.now)
    [asked] = reading.tell(Request(5, proposal))
    assert asked == Send(WRITER, WriteChange(1, proposal.change))
    assert not reading.reader.includes(proposal)
    writer.take(proposal.change)
    effects = reading.hear(WRITER, Written(1, 2))
    assert of(Answered, effects) == [Answered(5, Written(0, 2))]
    assert reading.run(effects)[-1] == Learned(STREAM, 2)
    assert reading.reader.includes(proposal)
    assert reading.reader.version(STREAM) == 2


def test_what_would_be_refused_is_not_proposed() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created())
    with pytest.raises(LocalError, match="forbidden"):
        reading.reader.propose(ANN, STREAM, [DeleteStream()], reading.now)
    with pytest.raises(LocalError, match="follow it first"):
        reading.reader.propose(OWNER, SECOND, DeleteStream(), reading.now)


def test_requests_wait_for_a_link_and_for_no_longer_than_they_may() -> None:
    reading = Reading()
    reading.start()
    reading.down(WRITER)
    assert reading.tell(Request(5, ListChains(0))) == []
    assert sent(ListChains, reading.up(WRITER)) == [(WRITER, ListChains(1))]
    reading.down(WRITER)
    assert sent(ListChains, reading.up(WRITER)) == [(WRITER, ListChains(1))]
    reading.down(WRITER)
    answers = of(Answered, reading.wait(REQUEST_S))
    assert answers == [Answered(5, None, "timeout")]


def test_what_one_tracker_does_not_answer_another_is_asked() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    reading.follow(created())
    change = WriteChange(0, reading.writers[STREAM].next(DeleteStream()))
    asked = sent(WriteChange, [*reading.tell(Request(5, change)), *reading.wait(REQUEST_S / 2)])
    assert [to for to, _ in asked] == [WRITER, COPIER]
    effects = reading.hear(COPIER, Written(1, 2))
    assert of(Answered, effects) == [Answered(5, Written(0, 2))]
    assert reading.hear(WRITER, Written(1, 2)) == []
