"""Parts: becoming a member, and leaving nothing behind."""

import random
from typing import Any

import msgspec

from anabranch.core.duplicates import Verdict
from anabranch.core.ids import NodeId, StreamPart, number_of, part_key
from anabranch.core.machine import Hold, Notice, Release
from anabranch.core.messages import Contact
from anabranch.core.overlay import PartSettings
from anabranch.core.parts import JOIN_WINDOW_S, MAX_PARTS, Parts
from anabranch.core.publishing import Publishing
from machines import NODES, OTHER, OWNER, PART, SIGNERS, START, Plain, drafts, plain_settings

ME, A, B = NODES[:3]


class Second(Plain):
    """Another kind of overlay."""


def nobody(_: NodeId) -> bool:
    return False


def parts(settings: dict[StreamPart, PartSettings]) -> Parts:
    factories: dict[str, Any] = {"plain": Plain, "second": Second}
    return Parts(Contact(ME), settings.get, factories, random.Random(1), nobody)


def test_joining_makes_a_member_once() -> None:
    mine = parts({PART: plain_settings(A, B)})
    state, effects = mine.join(PART, START)
    assert state is not None
    assert effects == [Hold(A), Hold(B)]
    assert (state.part, state.key) == (PART, part_key(PART))
    assert state.idle
    assert mine.join(PART, START + 1) == (state, [])
    assert mine.find(PART) is mine.get(part_key(PART)) is state
    assert (list(mine), len(mine)) == ([state], 1)


def test_a_member_is_idle_when_it_neither_subscribes_nor_publishes() -> None:
    state, _ = parts({PART: plain_settings()}).join(PART, START)
    assert state is not None
    state.subscribed = True
    assert not state.idle
    state.publishing = Publishing(state.key, SIGNERS[0].node + bytes(8), SIGNERS[0].sign)
    state.subscribed = False
    assert not state.idle
    state.publishing = None
    assert state.idle


def test_what_the_directory_does_not_know_cannot_be_joined() -> None:
    mine = parts({PART: PartSettings("no such overlay")})
    for part in (PART, OTHER):
        state, effects = mine.join(part, START)
        assert state is None
        (notice,) = effects
        assert isinstance(notice, Notice)
        assert (notice.part, notice.kind) == (part, "no-such-stream")
    assert len(mine) == 0
    assert mine.overlays == {}


def test_the_parts_of_a_node_are_bounded() -> None:
    many = [StreamPart(f"{OWNER}/{number}", 0) for number in range(MAX_PARTS + 1)]
    mine = parts({part: plain_settings(A) for part in many})
    states = [mine.join(part, START)[0] for part in many]
    assert states[-1] is None
    (notice,) = mine.join(many[-1], START)[1]
    assert isinstance(notice, Notice)
    assert notice.kind == "too-many-parts"
    assert mine.sizes()["parts"] == (MAX_PARTS, MAX_PARTS)
    assert states[0] is not None
    mine.leave(states[0], START)
    assert mine.join(many[-1], START)[0] is not None


def test_there_is_one_overlay_for_each_kind() -> None:
    third = StreamPart(f"{OWNER}/third", 0)
    second = PartSettings("second", 4, (Contact(B),))
    mine = parts({PART: plain_settings(A), OTHER: plain_settings(B), third: second})
    overlays = []
    for part in (PART, OTHER, third):
        state, _ = mine.join(part, START)
        assert state is not None
        overlays.append(state.overlay)
    assert overlays[0] is overlays[1]
    assert [type(overlay) for overlay in overlays] == [Plain, Plain, Second]
    assert list(mine.overlays) == ["plain", "second"]


def test_leaving_keeps_nothing() -> None:
    mine = parts({PART: plain_settings(A), OTHER: plain_settings(A)})
    state, _ = mine.join(PART, START)
    other, _ = mine.join(OTHER, START)
    assert state is not None
    assert other is not None
    newer = number_of(int(START * 1000), 0)
    for each in (state, other):
        each.seen.mark(A + bytes(8), 0, newer)
        mine.recent.add(each.key, b"frame", START)
    state.publishing = Publishing(state.key, ME + bytes(8), SIGNERS[0].sign)
    state.publishing.waiting.add(drafts(1))
    assert mine.leave(state, START) == [Release(A)]
    assert mine.find(PART) is None
    assert state.seen.sizes()["chains"][0] == 0
    assert mine.recent.since(state.key, 0.0) == []
    assert mine.recent.since(other.key, 0.0) == [b"frame"]
    assert mine.leave(other, START) == [Release(A)]
    assert [name for name, (size, _) in mine.sizes().items() if size] == []
    again, effects = mine.join(PART, START + 1)
    assert again is not state
    assert effects == [Hold(A)]


def test_what_is_older_than_our_joining_by_more_than_a_minute_is_history() -> None:
    state, _ = parts({PART: plain_settings()}).join(PART, START)
    assert state is not None
    chain = A + bytes(8)
    floor = number_of(int((START - JOIN_WINDOW_S) * 1000), 0)
    assert state.seen.check(chain, 0, floor, floor) is Verdict.TOO_OLD
    assert state.seen.check(chain, 0, floor + 1, floor + 1) is Verdict.NEW
    early, _ = parts({PART: plain_settings()}).join(PART, 1.0)
    assert early is not None
    assert early.seen.check(chain, 0, 1, 1) is Verdict.NEW


def test_of_many_tables_alike_the_fullest_is_shown() -> None:
    mine = parts({PART: plain_settings(A), OTHER: plain_settings(A)})
    for part, many in ((PART, 1), (OTHER, 3)):
        state, _ = mine.join(part, START)
        assert state is not None
        state.publishing = Publishing(state.key, ME + bytes(8), SIGNERS[0].sign)
        state.publishing.waiting.add(drafts(*range(many)))
        for number in range(many):
            mine.recent.add(state.key, bytes(10), START)
            state.seen.mark(A + bytes([*bytes(7), number]), 0, number_of(int(START * 1000), 0))
    sizes = {name: size for name, (size, _) in mine.sizes().items()}
    assert sizes["waiting drafts"] == sizes["recent frames"] == sizes["chains"] == 3
    assert sizes["recent bytes"] == 30


def test_a_part_whose_stream_is_stored_from_now_on_keeps_its_frames_for_longer() -> None:
    known = {PART: plain_settings(A)}
    mine = parts(known)
    state, _ = mine.join(PART, START)
    assert state is not None
    for at, is_stored, kept in ((START, True, 1), (START + 60, True, 2), (START + 120, False, 1)):
        known[PART] = msgspec.structs.replace(known[PART], is_stored=is_stored)
        assert mine.change(state, at) == []  # its overlay has nothing to do
        mine.recent.add(state.key, b"frame", at)
        assert len(mine.recent.positions(state.key)[1]) == kept


def test_a_part_goes_on_with_what_the_registry_says_now() -> None:
    known = {PART: plain_settings(A)}
    mine = parts(known)
    state, _ = mine.join(PART, START)
    assert state is not None
    assert mine.change(state, START) == []
    known[PART] = plain_settings(B)
    assert mine.change(state, START) == [Release(A), Hold(B)]
    assert state.settings == known[PART]
    known[PART] = PartSettings("second", 4, (Contact(A),))
    assert mine.change(state, START) == [Release(B), Hold(A)]
    assert state.overlay is mine.overlays["second"]
    known[PART] = PartSettings("unheard-of")
    assert mine.change(state, START) is None
    del known[PART]
    assert mine.change(state, START) is None
    assert mine.find(PART) is state  # it is the caller's to leave
