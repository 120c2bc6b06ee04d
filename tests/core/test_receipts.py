"""Receipts: what storage nodes must have said, in whose name, and what it takes to be believed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.ids import NodeId, chain_key, stream_part
from anabranch.core.machine import Notice, Receipt
from anabranch.core.messages import Acknowledged
from anabranch.core.messages.storage import MAX_NUMBER, FrameName, Holding
from anabranch.core.receipts import DISAGREES, STORED_S, Receipts, check_receipt, signed_bytes
from machines import KEYS, NODES, OTHER, PART, SIGNERS, Chain, leftovers, of
from receipt_desk import KEEPERS, ME, NET, Desk, acknowledged, holding, said

# --- Words ----------------------------------------------------------------------------------


def test_a_receipt_comes_when_so_many_have_said_that_they_hold_it() -> None:
    desk = Desk()
    frame = desk.publish((7, 2))
    assert desk.say(1, frame) == []
    assert desk.say(3, frame) == [
        Receipt(
            7,
            tuple((NODES[place], acknowledged(place, frame)) for place in (1, 3)),
            "",
            holding(frame).offset,
            peek(frame).first,
        )
    ]
    assert desk.say(2, frame) == []  # nobody waits for it any more
    assert "frames without receipts" not in leftovers(desk.receipts)


def test_drafts_of_one_frame_may_want_different_numbers_of_copies() -> None:
    desk = Desk()
    frame = desk.publish((7, 3), (8, 1), (9, 2))
    for place, tickets in ((1, [8]), (2, [9]), (3, [7])):
        assert [receipt.ticket for receipt in of(Receipt, desk.say(place, frame))] == tickets
    assert [said(desk.receipt(ticket)) for ticket in (7, 8, 9)] == [[1, 2, 3], [1], [1, 2]]


def test_one_word_may_hold_for_many_frames_and_for_some_that_are_not_ours() -> None:
    desk = Desk()
    frames = [desk.publish((ticket, 1)) for ticket in (1, 2, 3)]
    other = Chain(SIGNERS[8]).frame()
    desk.say(2, frames[0], other, frames[2])
    assert [receipt.ticket for receipt in of(Receipt, desk.effects)] == [1, 3]


def test_a_node_that_says_it_twice_is_one_node() -> None:
    desk = Desk()
    frame = desk.publish((7, 2))
    desk.say(1, frame)
    desk.say(1, frame)
    desk.say(1, frame, offset=41)
    assert desk.receipt(7) is None
    twice = (holding(frame), holding(frame))
    word = Acknowledged(PART, twice, SIGNERS[2].sign(signed_bytes(NET, PART, twice)))
    desk.done(desk.receipts.receive(NODES[2], word, desk.now))
    assert said(desk.receipt(7)) == [1, 2]


def test_one_word_that_names_a_frame_twice_is_one_word() -> None:
    desk = Desk()
    frame = desk.publish((7, 2), (8, 1))
    twice = (holding(frame, 40), holding(frame, 41))
    word = Acknowledged(PART, twice, SIGNERS[2].sign(signed_bytes(NET, PART, twice)))
    effects = desk.done(desk.receipts.receive(NODES[2], word, desk.now))
    assert effects == [Receipt(8, ((NODES[2], word),), "", 40, peek(frame).first)]


def test_only_words_on_one_offset_are_counted_together() -> None:
    desk = Desk()
    frame = desk.publish((7, 2))
    desk.say(1, frame, offset=40)
    (notice,) = desk.say(2, frame, offset=41)
    assert isinstance(notice, Notice)
    assert (notice.part, notice.kind) == (PART, DISAGREES)
    assert of(Receipt, desk.say(3, frame, offset=41)) == [desk.receipt(7)]
    assert said(desk.receipt(7)) == [2, 3]
    assert len(of(Notice, desk.effects)) == 1


def test_storage_nodes_that_disagree_are_reported_once_and_believed_by_nobody() -> None:
    desk = Desk()
    frame = desk.publish((7, 2))
    for place in KEEPERS:
        desk.say(place, frame, offset=place)
    assert len(of(Notice, desk.effects)) == 1
    desk.wait(STORED_S)
    receipt = desk.receipt(7)
    assert receipt is not None
    assert (said(receipt), bool(receipt.problem)) == ([1], True)


# --- Words that do not count ----------------------------------------------------------------


@pytest.mark.parametrize(
    "false",
    [
        {"signer": SIGNERS[2]},
        {"network": b"m" * 32},
        {"digest": b"d" * 32},
    ],
    ids=["another's signature", "another network", "another frame"],
)
def test_a_false_word_costs_the_link_and_counts_for_nothing(false: dict[str, Any]) -> None:
    desk = Desk()
    frame, other = desk.publish((7, 1)), desk.publish((8, 1))
    with pytest.raises(RemoteError):
        desk.say(1, frame, other, **false)
    assert of(Receipt, desk.effects) == []
    desk.say(1, frame)
    assert said(desk.receipt(7)) == [1]


def test_a_signature_holds_for_nothing_but_what_was_signed() -> None:
    desk = Desk()
    frame, other = desk.publish((7, 1)), desk.publish((8, 1))
    good = acknowledged(1, frame)
    for changed in (
        {"holdings": (holding(other),)},
        {"holdings": (holding(frame), holding(other))},
        {"holdings": (holding(frame, 41),)},
        {"signature": bytes(64)},
    ):
        with pytest.raises(RemoteError):
            desk.receipts.receive(NODES[1], msgspec.structs.replace(good, **changed), desk.now)
    desk.receipts.receive(NODES[1], good, desk.now)


def test_who_is_not_a_storage_node_of_the_stream_is_not_believed() -> None:
    desk = Desk()
    frame = desk.publish((7, 1))
    assert desk.say(4, frame) == []
    desk.registry.streams[PART.stream] = (2, 3, 4)
    assert desk.say(1, frame) == []  # it was one
    desk.say(4, frame)
    assert said(desk.receipt(7)) == [4]


def test_a_word_on_another_part_says_nothing_of_this_one() -> None:
    desk = Desk()
    desk.registry.streams[OTHER.stream] = KEEPERS
    frame = desk.publish((7, 1))
    assert desk.say(1, frame, part=OTHER) == []
    assert desk.say(1, frame, part=stream_part(PART.stream, 1)) == []


def test_nobody_checks_signatures_for_words_that_are_of_no_use() -> None:
    checked: list[NodeId] = []

    def verify(node: NodeId, digest: bytes, signature: bytes) -> bool:
        checked.append(node)
        return KEYS.verify(node, digest, signature)

    desk = Desk()
    desk.receipts = Receipts(NET, verify, desk.registry)
    frame = desk.publish((7, 2))
    for place in (1, 1, 4, 1):
        desk.say(place, frame)
    desk.say(2, Chain(SIGNERS[8]).frame())
    assert checked == [NODES[1]]


# --- What is signed -------------------------------------------------------------------------

NAMES = st.builds(
    FrameName,
    st.binary(min_size=20, max_size=20).map(lambda node: chain_key(NodeId(node), 1)),
    st.integers(0, MAX_NUMBER),
)
HOLDINGS = st.builds(
    Holding,
    NAMES,
    st.integers(0, MAX_NUMBER),
    st.binary(min_size=32, max_size=32),
    st.booleans(),
)
SAID = st.tuples(
    st.sampled_from((NET, b"m" * 32, NET[:-1])),
    st.sampled_from((PART, OTHER, stream_part(PART.stream, 1), stream_part(PART.stream + "x"))),
    st.lists(HOLDINGS, min_size=1, max_size=3),
)


@given(SAID, SAID)
def test_no_two_statements_share_a_digest(one: Any, two: Any) -> None:
    assert (signed_bytes(*one) == signed_bytes(*two)) is (one == two)
    assert len(signed_bytes(*one)) == 32


def test_what_is_signed_of_one_partition_holds_for_no_other() -> None:
    held = (holding(Chain(ME).frame()),)
    parts = [stream_part(PART.stream, partition) for partition in range(3)]
    assert len({signed_bytes(NET, part, held) for part in parts}) == 3


def test_receipt_signs_whether_the_frame_is_late() -> None:
    desk = Desk()
    frame = desk.publish((7, 1))
    held = msgspec.structs.replace(holding(frame), late=True)
    word = Acknowledged(PART, (held,), SIGNERS[1].sign(signed_bytes(NET, PART, (held,))))
    false = msgspec.structs.replace(word, holdings=(holding(frame),))
    with pytest.raises(RemoteError, match="not signed"):
        check_receipt(NET, PART, KEYS.verify, NODES[1], false)
    check_receipt(NET, PART, KEYS.verify, NODES[1], word)
    [receipt] = of(Receipt, desk.receipts.receive(NODES[1], word, desk.now))
    assert receipt.late


def test_a_receipt_can_be_checked_later() -> None:
    frame = Chain(ME).frame()
    word = acknowledged(1, frame)
    check_receipt(NET, PART, KEYS.verify, NODES[1], word)
    for network, part, node, said_so in (
        (b"m" * 32, PART, NODES[1], word),
        (NET, OTHER, NODES[1], word),
        (NET, PART, NODES[2], word),
        (NET, PART, NODES[1], msgspec.structs.replace(word, signature=bytes(64))),
        (NET, OTHER, NODES[1], msgspec.structs.replace(word, part=OTHER)),
    ):
        with pytest.raises(RemoteError):
            check_receipt(network, part, KEYS.verify, node, said_so)
