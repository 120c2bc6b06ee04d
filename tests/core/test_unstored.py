"""Published frames are kept until a majority of the storage nodes has signed for them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import unstored
from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Draft,
    Effect,
    ForgetFrames,
    Hold,
    KeepFrame,
    Notice,
    OfferUnstored,
    Outcome,
    Publish,
    Receipt,
    Release,
    Retire,
)
from anabranch.core.messages import Declined, Hand, LackingNames
from anabranch.core.messages.storage import PAGE_BYTES, FrameName
from anabranch.core.publishing import EXPIRED
from anabranch.core.receipts import GIVEN_UP, IDLE_S, Receipts
from anabranch.core.unstored import (
    AGAIN_MOST_S,
    FRAME_COST_BYTES,
    HAND_AFTER_S,
    HAND_BYTES,
    LEAST_UNSTORED_BYTES,
    NOTICE_AFTER_S,
    OFFER_AFTER_S,
    STORED_AGAIN,
    UNSTORED,
    WINDOW,
    Unstored,
)
from machines import KEYS, NODES, OTHER, PART, SIGNERS, Chain, of, peer, plain_settings
from receipt_desk import KEEPERS, ME, NET, Desk, Listed, asked, last, messages


def name(frame: bytes) -> FrameName:
    return FrameName(peek(frame).chain, peek(frame).last)


def lacking(desk: Desk, place: int, *frames: bytes, part: StreamPart = PART) -> list[Effect]:
    answer = LackingNames(part, tuple(map(name, frames)))
    return desk.done(desk.receipts.receive(NODES[place], answer, desk.now))


def handed(effects: list[Effect], place: int) -> list[bytes]:
    return [frame for hand in messages(Hand, effects, place) for frame in hand.frames]


def waiting(desk: Desk, part: StreamPart = PART) -> int:
    count: int = desk.receipts.unstored.unstored(part).waiting
    return count


# --- Until it is stored ---------------------------------------------------------------------


def test_a_frame_is_kept_until_a_majority_of_the_named_storage_nodes_has_signed() -> None:
    desk = Desk()
    desk.link(*KEEPERS)
    frame = desk.publish()
    assert waiting(desk) == 1
    desk.say(1, frame)
    assert waiting(desk) == 1
    desk.say(1, frame)
    assert waiting(desk) == 1, "one storage node cannot sign twice"
    desk.say(3, frame)
    assert (waiting(desk), desk.receipts.unstored.messages) == (0, 0)
    assert messages(Hand, desk.effects) == []


def test_a_false_mark_of_one_storage_node_does_not_end_the_offers_to_the_others() -> None:
    desk = Desk()
    desk.link(*KEEPERS)
    frame = desk.publish()
    desk.say(2, frame)  # it lies: no other storage node has the frame
    effects = desk.wait(OFFER_AFTER_S)
    assert asked(effects, 1) == asked(effects, 3) == last(frame)
    assert handed(lacking(desk, 1, frame), 1) == [frame]
    with pytest.raises(RemoteError):
        desk.say(3, frame, signer=SIGNERS[2])
    with pytest.raises(RemoteError):
        desk.say(3, frame, digest=bytes(32))
    assert desk.say(4, frame) == []
    assert waiting(desk) == 1


def test_a_stream_without_storage_nodes_costs_nothing() -> None:
    desk = Desk()
    assert desk.publish(part=OTHER)
    assert desk.effects == []
    assert not desk.receipts.stores(OTHER.stream)
    assert (desk.receipts.wakeup_at, waiting(desk, OTHER)) == (None, 0)


def test_links_are_held_and_held_to_a_new_address_until_the_frame_is_stored() -> None:
    desk = Desk(1)
    frame = desk.publish()
    assert of(Hold, desk.effects) == [Hold(NODES[1], "1:1")]
    desk.wait(3 * IDLE_S)
    assert of(Release, desk.effects) == []
    desk.registry.address = "{}:2"
    effects = desk.done(desk.receipts.learned("network", desk.now))
    assert effects == [Hold(NODES[1], "1:2"), Release(NODES[1])]
    desk.link(1)
    desk.say(1, frame)
    assert of(Release, desk.wait(2 * IDLE_S)) == [Release(NODES[1])]


# --- Offers ---------------------------------------------------------------------------------


def test_names_are_offered_together_after_a_second_and_again_ever_later() -> None:
    desk = Desk(1)
    desk.link(1)
    frames = [desk.publish(), desk.publish()]
    began = desk.now
    offers: list[float] = []
    while desk.now < began + 100:
        if asked(desk.wait(0.5), 1) == last(*frames):
            offers.append(desk.now - began)
    assert offers == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 62.0, 92.0]


def test_everything_is_offered_as_soon_as_there_is_a_link() -> None:
    desk = Desk(1, 2)
    frames = [desk.publish() for _ in range(3)]
    assert asked(desk.wait(60), 1) == []
    assert asked(desk.link(1), 1) == last(*frames)
    desk.link(1, up=False)
    assert asked(desk.wait(AGAIN_MOST_S), 1) == []
    assert asked(desk.link(1), 1) == last(*frames)
    assert asked(desk.effects, 4) == []


def test_no_more_names_than_a_window_are_offered_until_some_are_signed() -> None:
    desk = Desk(1)
    desk.link(1)
    frames = [desk.publish() for _ in range(2 * WINDOW)]
    assert asked(desk.wait(OFFER_AFTER_S), 1) == last(*frames[:WINDOW])
    for at in range(0, WINDOW, 256):
        desk.say(1, *frames[at : at + 256])
    assert set(asked(desk.effects, 1)) == set(last(*frames))
    assert waiting(desk) == WINDOW


def test_names_are_offered_at_once_when_the_application_is_about_to_leave() -> None:
    desk = Desk(1)
    desk.link(1)
    frame = desk.publish()
    effects = desk.done(desk.receipts.tell(OfferUnstored(), desk.now))
    assert asked(effects, 1) == last(frame)


# --- Handing over ---------------------------------------------------------------------------


def test_only_lacking_frames_are_handed_over_and_only_to_the_node_that_lacks_them() -> None:
    desk = Desk()
    desk.link(*KEEPERS)
    frames = [desk.publish() for _ in range(3)]
    desk.wait(OFFER_AFTER_S)
    effects = lacking(desk, 2, frames[1])
    assert [handed(effects, place) for place in KEEPERS] == [[], [frames[1]], []]
    assert handed(lacking(desk, 2, frames[1]), 2) == [], "it is on its way"
    assert lacking(desk, 4, frames[1]) == [], "it is no storage node of the stream"


def test_a_frame_that_may_still_be_on_its_way_is_handed_over_a_moment_later() -> None:
    desk = Desk(1)
    desk.link(1)
    frame = desk.publish()
    desk.receipts.tell(OfferUnstored(), desk.now)
    assert handed(lacking(desk, 1, frame), 1) == []
    assert asked(desk.wait(HAND_AFTER_S), 1) == last(frame)
    assert handed(lacking(desk, 1, frame), 1) == [frame]


def test_frames_are_handed_over_as_far_as_there_is_room_and_further_when_some_are_signed() -> None:
    desk = Desk(1)
    desk.link(1)
    frames = [desk.publish(size=PAGE_BYTES // 2) for _ in range(20)]
    desk.wait(OFFER_AFTER_S)
    first = handed(lacking(desk, 1, *frames), 1)
    assert first == frames[: len(first)]
    assert HAND_BYTES <= sum(map(len, first)) < HAND_BYTES + PAGE_BYTES
    assert handed(desk.say(1, first[0]), 1) == []
    more = desk.say(1, *first[1:])
    assert handed(more, 1) == frames[len(first) : 2 * len(first)]
    assert all(sum(map(len, hand.frames)) <= PAGE_BYTES for hand in messages(Hand, more))


def test_frames_without_an_answer_are_offered_and_handed_over_once_more() -> None:
    desk = Desk(1)
    desk.link(1)
    frame = desk.publish()
    desk.wait(OFFER_AFTER_S)
    lacking(desk, 1, frame)
    assert asked(desk.wait(2.0), 1) == last(frame)
    assert handed(lacking(desk, 1, frame), 1) == [frame]


def test_a_storage_node_that_declines_frames_is_left_alone_for_a_while() -> None:
    desk = Desk(1)
    desk.link(1)
    frame = desk.publish()
    desk.wait(OFFER_AFTER_S)
    desk.done(desk.receipts.receive(NODES[1], Declined(PART, (name(frame),)), desk.now))
    assert asked(desk.wait(AGAIN_MOST_S - 0.1), 1) == []
    assert asked(desk.wait(0.2), 1) == last(frame)
    assert waiting(desk) == 1


# --- The bound ------------------------------------------------------------------------------


def bounded(*places: int) -> Desk:
    desk = Desk(*places)
    desk.receipts = Receipts(NET, KEYS.verify, desk.registry, LEAST_UNSTORED_BYTES)
    return desk


def test_above_the_bound_the_oldest_frames_are_given_up_and_counted() -> None:
    desk = bounded(1)
    size = LEAST_UNSTORED_BYTES // 10 - FRAME_COST_BYTES
    frames = [desk.publish(size=size) for _ in range(12)]
    found = desk.receipts.unstored.unstored(PART)
    assert found == Unstored(9, 3)
    assert asked(desk.link(1), 1) == last(*frames[3:])
    (notice,) = [each for each in of(Notice, desk.effects) if each.kind == UNSTORED]
    assert "4 MiB" in notice.detail
    assert desk.receipts.unstored.given_up == 3


def test_a_part_that_publishes_much_does_not_take_the_room_of_another() -> None:
    desk = bounded(1)
    desk.registry.streams[OTHER.stream] = (1,)
    small = [desk.publish(size=1_000, part=OTHER) for _ in range(3)]
    for _ in range(12):
        desk.publish(size=LEAST_UNSTORED_BYTES // 10)
    assert desk.receipts.unstored.unstored(OTHER) == Unstored(len(small), 0)
    assert desk.receipts.unstored.unstored(PART).given_up > 0


def test_a_receipt_of_a_frame_that_was_given_up_says_so() -> None:
    desk = bounded(1)
    desk.publish((7, 1), size=1_000)
    for _ in range(12):
        desk.publish(size=LEAST_UNSTORED_BYTES // 10)
    assert desk.receipt(7) == Receipt(7, (), GIVEN_UP)


# --- The ledger -----------------------------------------------------------------------------


def test_marks_of_the_storage_nodes_that_are_named_now_count() -> None:
    desk = Desk()
    desk.link(*KEEPERS, 4)
    frame = desk.publish()
    desk.say(1, frame)
    desk.registry.streams[PART.stream] = (2, 3, 4)
    assert of(Hold, desk.done(desk.receipts.learned(PART.stream, desk.now))) == [
        Hold(NODES[4], "4:1")
    ]
    desk.say(2, frame)
    assert waiting(desk) == 1
    assert asked(desk.wait(OFFER_AFTER_S), 4) == last(frame)
    desk.registry.streams[PART.stream] = (2,)
    desk.done(desk.receipts.learned(PART.stream, desk.now))
    assert waiting(desk) == 0, "one of one has signed"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_what_waits_for_a_stream_without_storage_nodes_is_forgotten_and_said(
    is_deleted: bool,
) -> None:
    desk = Desk()
    desk.publish((7, 1))
    if is_deleted:
        desk.registry.deleted.add(PART.stream)
    else:
        desk.registry.streams[PART.stream] = ()
    effects = desk.done(desk.receipts.learned(PART.stream, desk.now))
    assert ("deleted" in of(Notice, effects)[0].detail) is is_deleted
    assert desk.receipt(7) is not None
    assert desk.receipts.unstored.all_unstored() == {}


def test_a_tracker_that_knows_nothing_of_a_stream_does_not_make_its_frames_forgotten() -> None:
    desk = Desk()
    desk.publish()
    desk.registry.unknown.add(PART.stream)
    desk.done(desk.receipts.learned(PART.stream, desk.now))
    desk.registry.unknown.clear()
    places = desk.registry.streams.pop(PART.stream)  # a ledger without a single change
    desk.done(desk.receipts.learned(PART.stream, desk.now))
    assert waiting(desk) == 1
    desk.registry.streams[PART.stream] = places


def test_frames_of_a_publisher_without_a_right_wait_unoffered_until_it_has_one() -> None:
    desk = Desk(1)
    frame = desk.publish()
    desk.registry.may_publish = False
    assert asked(desk.link(1), 1) == []
    assert asked(desk.wait(300), 1) == []
    said = [notice.detail for notice in of(Notice, desk.effects) if "no longer" in notice.detail]
    assert len(said) == 1
    desk.registry.may_publish = True
    desk.done(desk.receipts.learned(PART.stream, desk.now))
    assert asked(desk.wait(OFFER_AFTER_S), 1) == last(frame)


# --- What is said ---------------------------------------------------------------------------


def test_a_notice_comes_after_five_seconds_and_when_everything_is_stored_again() -> None:
    desk = Desk()
    desk.link(1)
    quick = desk.publish()
    desk.wait(3)
    frame = desk.publish()
    desk.say(1, quick)
    desk.say(2, quick)
    desk.wait(NOTICE_AFTER_S - 0.1)
    assert of(Notice, desk.effects) == []
    desk.wait(0.1)
    desk.wait(60)
    (notice,) = of(Notice, desk.effects)
    assert (notice.part, notice.kind) == (PART, UNSTORED)
    assert "1 messages are not stored" in notice.detail
    assert "1 of its 3 storage nodes are linked" in notice.detail
    desk.say(1, frame)
    assert [each.kind for each in of(Notice, desk.say(2, frame))] == [STORED_AGAIN]


# --- The data folder ------------------------------------------------------------------------


def lasting(*frames: bytes) -> Desk:
    desk = Desk()
    kept = [KeepFrame(PART, name(frame), frame) for frame in frames]
    desk.receipts = Receipts(NET, KEYS.verify, Listed(*KEEPERS), lasting=kept)
    desk.registry = desk.receipts._registry
    return desk


def test_frames_go_into_the_folder_and_out_of_it_once_they_are_stored() -> None:
    desk = lasting()
    frame = desk.publish()
    assert of(KeepFrame, desk.effects) == [KeepFrame(PART, name(frame), frame)]
    desk.say(1, frame)
    assert of(ForgetFrames, desk.effects) == []
    assert of(ForgetFrames, desk.say(2, frame)) == [ForgetFrames(PART, (name(frame),))]


def test_frames_of_the_folder_are_offered_when_their_stream_is_known() -> None:
    frames = [Desk().publish() for _ in range(1)]
    desk = lasting(*frames)
    desk.registry.unknown.add(PART.stream)
    desk.done(desk.receipts.start(desk.now))
    desk.link(1)
    assert desk.receipts.unstored.streams() == [PART.stream]
    assert (waiting(desk), asked(desk.wait(2), 1)) == (1, [])
    desk.registry.unknown.clear()
    effects = desk.done(desk.receipts.learned(PART.stream, desk.now)) + desk.wait(OFFER_AFTER_S)
    assert len(of(Hold, effects)) == 3
    assert asked(effects, 1) == last(*frames)
    assert handed(lacking(desk, 1, *frames), 1) == frames


def test_frames_of_the_folder_are_handed_over_as_soon_as_a_storage_node_lacks_them() -> None:
    frame = Desk().publish()
    desk = lasting(frame)
    desk.done(desk.receipts.start(desk.now) + desk.receipts.learned(PART.stream, desk.now))
    assert not desk.receipts.unstored.is_linked
    desk.link(1)
    assert not desk.receipts.unstored.is_linked, "one of three"
    desk.link(2)
    assert desk.receipts.unstored.is_linked
    assert handed(lacking(desk, 1, frame), 1) == [frame], "it is not on its way any more"


def test_given_frames_of_the_folder_are_still_known_as_given() -> None:
    frame = Desk().publish()
    desk = Desk()
    kept = KeepFrame(PART, name(frame), frame, is_given=True)
    desk.receipts = Receipts(NET, KEYS.verify, desk.registry, lasting=[kept])
    desk.done(desk.receipts.start(desk.now) + desk.receipts.learned(PART.stream, desk.now))
    desk.link(*KEEPERS)
    for place in (1, 2):  # another process published something else: no link is at fault
        desk.say(place, frame, digest=bytes(32))
    assert desk.receipts.unstored.messages == 0
    assert of(ForgetFrames, desk.effects) == [ForgetFrames(PART, (name(frame),))]


def test_a_given_frame_that_replaces_another_stays_in_the_folder() -> None:
    desk = lasting()
    old, new = (Chain(ME).frame(content, at=desk.now) for content in (b"old", b"new"))
    assert name(old) == name(new)
    for frame in (old, new):
        desk.done(desk.receipts.published(PART, peek(frame), frame, (), desk.now, True))
    folder = [each for each in desk.effects if type(each) in (KeepFrame, ForgetFrames)]
    assert folder == [
        KeepFrame(PART, name(old), old, is_given=True),
        ForgetFrames(PART, (name(old),)),
        KeepFrame(PART, name(new), new, is_given=True),
    ]
    assert list(desk.receipts.unstored.lasting()) == folder[-1:]


def test_a_frame_that_no_neighbour_took_is_not_stored_later() -> None:
    desk = lasting()
    frame = desk.publish()
    effects = desk.done(desk.receipts.withdraw(PART, name(frame)))
    assert of(ForgetFrames, effects) == [ForgetFrames(PART, (name(frame),))]
    assert desk.receipts.unstored.all_unstored() == {}


# --- In a Peer ------------------------------------------------------------------------------


def test_a_peer_keeps_what_it_publishes_into_a_stored_stream_and_nothing_else() -> None:
    registry = Listed(1)
    service = Receipts(NET, KEYS.verify, registry)
    settings = {PART: plain_settings(NODES[5]), OTHER: plain_settings(NODES[5])}
    hand = peer(settings, signer=ME, receipts=service)
    hand.link(NODES[1], NODES[5])
    for part in (PART, OTHER):
        hand(Publish(part, [Draft(b"one"), Draft(b"two")]))
    assert service.unstored.all_unstored() == {PART: Unstored(2, 0)}
    registry.streams[OTHER.stream] = (1,)
    hand(Publish(OTHER, [Draft(b"not looked at yet")]))
    machine: Any = hand.machine
    machine._learned(OTHER.stream, hand.now)
    hand(Publish(OTHER, [Draft(b"kept")]))
    assert service.unstored.unstored(OTHER) == Unstored(1, 0)


def test_a_message_that_is_reported_as_not_published_is_not_stored_later() -> None:
    service = Receipts(NET, KEYS.verify, Listed(1))
    settings = {PART: plain_settings(NODES[5])}
    hand = peer(settings, signer=ME, receipts=service, patience_s=3.0)
    hand(Publish(PART, [Draft(b"one", 0, 7)]))
    assert service.unstored.messages == 1
    assert [outcome.result for outcome in of(Outcome, hand.wait(3.0))] == [EXPIRED]
    assert service.unstored.all_unstored() == {}
    hand(Publish(PART, [Draft(b"two", 0, 8)]))
    hand(Retire(PART))
    assert service.unstored.all_unstored() == {}


# --- Anything may happen --------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 300_000)),
        st.tuples(st.just("say"), st.integers(1, 3)),
        st.tuples(st.just("lacking"), st.integers(1, 3)),
        st.tuples(st.just("link"), st.integers(1, 3)),
        st.tuples(st.just("cut"), st.integers(1, 3)),
        st.tuples(st.just("wait"), st.integers(0, 40)),
        st.tuples(st.just("name"), st.integers(1, 4)),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_message_is_stored_waits_or_is_counted_as_given_up(steps: list[Any]) -> None:
    desk = bounded(*KEEPERS)
    frames: list[bytes] = []
    signed: dict[bytes, set[int]] = {}
    stored: set[bytes] = set()
    for step, value in steps:
        named = set(desk.registry.streams[PART.stream])
        if step == "publish":
            frames.append(desk.publish(size=value))
        elif step == "say" and frames:
            some = frames[-3:]
            desk.say(value, *some)
            for frame in some if value in named else ():
                signed.setdefault(frame, set()).add(value)
        elif step == "lacking" and frames:
            lacking(desk, value, *frames)
        elif step in ("link", "cut"):
            desk.link(value, up=step == "link")
        elif step == "name":
            desk.registry.streams[PART.stream] = tuple(range(1, value + 1))
            desk.done(desk.receipts.learned(PART.stream, desk.now))
        elif step == "wait":
            desk.wait(value)
        named = set(desk.registry.streams[PART.stream])
        stored |= {f for f, by in signed.items() if len(by & named) > len(named) // 2}
    found = desk.receipts.unstored.unstored(PART)
    assert found.waiting + found.given_up <= len(frames)
    assert found.waiting + found.given_up >= len(frames) - len(stored)
    assert desk.receipts.unstored.messages == found.waiting
    unknown = [name for name, (size, bound) in desk.receipts.sizes().items() if size > bound]
    assert unknown == []
    assert unstored.MAX_UNSTORED_BYTES >= LEAST_UNSTORED_BYTES
