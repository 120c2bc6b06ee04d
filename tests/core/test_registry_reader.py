"""A reader: whole chains, checked change by change, kept up to date, from whoever answers."""

import pytest

from anabranch.core import registry_reader
from anabranch.core.changes import (
    DeleteStream,
    SetPermission,
    SetTrackers,
)
from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Answered,
    Follow,
    Hold,
    Learned,
    Notice,
    Release,
    Request,
    Send,
    Store,
)
from anabranch.core.messages import (
    ChainChanged,
    ListChains,
    ReadChain,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reader import (
    DOUBT_EVERY_S,
    REFRESH_S,
)
from anabranch.core.registry_requests import REQUEST_S
from anabranch.core.rendezvous import trackers_for
from chains import (
    ENTRIES,
    OWNER,
    SECOND,
    STREAM,
    WRITER,
    Reading,
    created,
    page_of,
    reads,
)
from machines import NODES, SIGNERS, START, of, sent

ANN = SIGNERS[1]
PART = StreamPart(STREAM, 0)


# --- Reading --------------------------------------------------------------------------------


def test_it_holds_the_tracker_that_was_found_and_reads_the_network() -> None:
    reading = Reading()
    assert reading.reader.start(START) == [Hold(WRITER, "ws://found")]
    assert reading.link(WRITER) == [Send(WRITER, ReadChain(1, NETWORK, 0))]
    page = page_of(ReadChain(1, NETWORK), reading.writers[NETWORK])
    assert reading.hear(WRITER, page) == [Learned(NETWORK, 1)]
    assert reading.reader.network_state.genesis.owner == OWNER.node


def test_a_chain_is_followed_to_its_end_and_learned_once() -> None:
    reading = Reading()
    reading.start()
    writer = created(*(SetPermission(NODES[5], 1 + at % 2) for at in range(199)))
    assert not reading.reader.knows(STREAM)
    assert reading.follow(writer) == [Learned(STREAM, 200)]
    assert reading.reader.knows(STREAM)
    assert reading.reader.state(STREAM).head == writer.state.head
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
    assert reading.hear(WRITER, page_of(asked.message, writer)) == []  # that ticket is used up


def test_a_stream_that_is_not_there_has_height_nought() -> None:
    reading = Reading()
    reading.start()
    assert reading.serve(reading.tell(Follow(STREAM))) == [Learned(STREAM, 0)]
    assert reading.tell(Follow("nonsense")) == [Learned("nonsense", 0)]
    assert reading.reader.directory(PART) is None
    assert not reading.reader.permits(PART, OWNER.node, START)


def test_a_push_is_read_from_where_we_stand() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    writer.add(SetPermission(ANN.node, 1))
    effects = reading.hear(WRITER, ChainChanged(STREAM, 2))
    assert reads(effects) == [(WRITER, STREAM, 1)]
    assert reading.serve(effects) == [Learned(STREAM, 2)]
    assert reading.hear(WRITER, ChainChanged(STREAM, 2)) == []
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
    assert reading.wait(REFRESH_S * 0.74) == []
    reading.writers[STREAM].add(DeleteStream())
    reading.writers[NETWORK].add(SetTrackers(ENTRIES[:1]))
    effects = reading.wait(REFRESH_S * 0.52)
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 1), (WRITER, STREAM, 1)])
    assert {e.chain for e in of(Learned, effects)} == {NETWORK, STREAM}


def test_a_link_that_comes_back_reads_everything_again() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    assert reading.link(WRITER, False) == []
    writer.add(SetPermission(ANN.node, 1))
    effects = reading.link(WRITER)
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 1), (WRITER, STREAM, 1)])
    assert reading.serve(effects) == [Learned(STREAM, 2)]


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
        reading.reader.state(STREAM)


def test_no_more_is_followed_than_the_bound() -> None:
    reading = Reading(max_followed=1)
    reading.start()
    reading.follow(created())
    effects = reading.tell(Follow(SECOND))
    assert [type(effect) for effect in effects] == [Notice, Learned]
    assert reading.reader.sizes()["followed chains"] == (2, 2)


def test_only_so_many_reads_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_reader, "MAX_READS", 2)
    reading = Reading()
    reading.start()
    effects = [e for at in range(5) for e in reading.tell(Follow(f"{STREAM}/{at}"))]
    assert len(reads(effects)) == 2
    learned = reading.serve(effects)
    assert sorted(e.chain for e in of(Learned, learned)) == [f"{STREAM}/{at}" for at in range(5)]


# --- What it is for -------------------------------------------------------------------------


def test_the_directory_and_permissions_come_from_the_chain() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    expires_ms = int(START * 1000) + 500
    reading.follow(created(SetPermission(ANN.node, 1, expires_ms)))
    reader = reading.reader
    assert reader.directory(PART).trackers == trackers_for(PART, ENTRIES)
    assert reader.directory(StreamPart(STREAM, 2)) is None
    assert reader.permits(PART, OWNER.node, START)
    assert reader.permits(PART, ANN.node, START + 0.4)
    assert not reader.permits(PART, ANN.node, START + 0.5)
    assert not reader.permits(PART, NODES[9], START)
    assert not reader.permits(StreamPart(STREAM, 2), OWNER.node, START)


def test_doubt_asks_at_most_twice_a_second_and_never_in_vain() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    doubt = reading.reader.doubt
    asked = doubt(STREAM, reading.now)
    assert reads(asked) == [(WRITER, STREAM, 1)]
    assert doubt(STREAM, reading.now) == []
    assert reading.serve(asked) == [Learned(STREAM, 1)]  # somebody waits for this word
    writer.add(SetPermission(ANN.node, 1))
    assert doubt(STREAM, reading.now) == []
    assert of(Learned, reading.wait(DOUBT_EVERY_S)) == [Learned(STREAM, 2)]
    assert doubt(SECOND, reading.now) == []


def test_who_copies_gets_every_change_to_store_while_there_is_room() -> None:
    room = [True]
    reading = Reading(copies=lambda: room[0])
    effects = reading.start()
    assert of(Store, effects) == [Store(0, NETWORK, 1, reading.writers[NETWORK].changes[0])]
    writer = created(SetPermission(ANN.node, 1))
    effects = reading.follow(writer)
    stores = [Store(0, STREAM, at, change) for at, change in enumerate(writer.changes, 1)]
    assert effects == [*stores, Learned(STREAM, 2)]
    room[0] = False
    assert reading.tell(Follow(SECOND)) == []
    room[0] = True
    assert reads(reading.wait(1)) == [(WRITER, SECOND, 0)]


def test_a_reader_goes_on_from_what_it_is_given() -> None:
    reading = Reading()
    writer = created()
    reading.reader.adopt(writer.state.copy())
    reading.writers[STREAM] = writer.add(DeleteStream())
    reading.reader.start(START)
    effects = reading.link(WRITER)
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 0), (WRITER, STREAM, 1)])
    assert Learned(STREAM, 2) in reading.serve(effects)
    assert reading.reader.stop() == [Release(WRITER)]


def test_what_was_written_is_read_back_at_once() -> None:
    reading = Reading()
    reading.start()
    writer = created()
    reading.follow(writer)
    change = writer.next(SetPermission(ANN.node, 1))
    [asked] = reading.tell(Request(5, WriteChange(0, change)))
    assert asked == Send(WRITER, WriteChange(1, change))
    writer.add(SetPermission(ANN.node, 1))
    effects = reading.hear(WRITER, Written(1, 2))
    assert of(Answered, effects) == [Answered(5, Written(0, 2))]
    assert reading.serve(effects)[-1] == Learned(STREAM, 2)


def test_requests_wait_for_a_link_and_for_no_longer_than_they_may() -> None:
    reading = Reading()
    reading.start()
    reading.link(WRITER, False)
    assert reading.tell(Request(5, ListChains(0))) == []
    assert sent(ListChains, reading.link(WRITER)) == [(WRITER, ListChains(1))]
    reading.link(WRITER, False)
    answers = of(Answered, reading.wait(REQUEST_S))
    assert answers == [Answered(5, None, "timeout")]
