"""Packets: they come back as they went, they never change, and hostile ones are refused.

Whatever bytes arrive, the answer is a message or a RemoteError: anything else would let one
packet stop a node.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wire_types
from anabranch.core import codec
from anabranch.core.errors import RemoteError
from anabranch.core.frames import MAX_FRAME_BYTES
from anabranch.core.ids import chain_key, stream_part
from anabranch.core.messages import (
    Acknowledged,
    AskEntries,
    AskLacking,
    AskRanges,
    AskRank,
    AskStored,
    Bye,
    ChainChanged,
    ChainHead,
    ChainList,
    ChainPage,
    Contact,
    Control,
    Declined,
    Disagree,
    Entries,
    Fetch,
    Fetched,
    Got,
    Hand,
    HeadList,
    Instruction,
    Introduce,
    KeyAnswer,
    KeyRequest,
    Lacking,
    LackingNames,
    Lead,
    Leave,
    ListChains,
    Listening,
    ListHeads,
    Marked,
    Meet,
    Probe,
    Probed,
    Ranges,
    Ranked,
    ReadChain,
    Refused,
    Report,
    Resend,
    Resent,
    Seen,
    SlowDown,
    Status,
    StorageSlowDown,
    Vote,
    Voted,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.messages.storage import (
    Entry,
    FrameName,
    FrameRange,
    Holding,
    Mark,
    Selection,
    Span,
)

GOLDEN = Path(__file__).parent / "golden" / "packets.txt"
HEAD = bytes([codec.PROTOCOL_VERSION, codec.CONTROL])
PART = stream_part("0x" + "0a" * 20 + "/city/cars", 3)
ANN, BEN, CAT = b"a" * 20, b"b" * 20, b"c" * 20

# One of each type, with something in every field.
FRAME = FrameName(chain_key(ANN, 7), 2**60)
MARK = Mark(node=ANN, epoch=2, length=300, high=290, hash=b"h" * 32, signature=b"s" * 64)

EXAMPLES: list[Control] = [
    Meet(PART, True, 1_500),
    Bye(PART),
    SlowDown(PART, 100),
    StorageSlowDown(PART, ANN, 100, 1_767_225_600_000, b"s" * 64),
    Got(PART, chain_key(ANN, 7), (2**60,)),
    Status(PART, 300, (ANN, BEN), (0, 70_000), "ws://localhost:7000"),
    Instruction(PART, 2**40, (Contact(ANN, "ws://localhost:7001"), Contact(BEN)), (CAT,)),
    Leave(PART),
    Report(PART, 1, 2, 3, 4, 5, 60_000, 70_000, 80_000, 9, 10, 11),
    Refused(PART, "unpermitted"),
    Probe(PART, (Contact(ANN, "ws://localhost:7001"),), (BEN,)),
    Probed(PART, ANN, 12_345),
    Listening("ws://198.51.100.7:7000"),
    Seen("198.51.100.7", "ws://192.168.1.5:7000", False),
    KeyRequest(PART, chain_key(ANN, 7), b"t" * 16, 3, b"request"),
    KeyAnswer(PART, b"t" * 16, b"answer"),
    ReadChain(1, PART.stream, 2, b"h" * 32),
    ChainPage(1, PART.stream, 2, 300, b"h" * 32, b"\x91\xc4\x01x"),
    WriteChange(2, b"change"),
    Written(2, 301, "stale: read the chain and try again"),
    ListChains(3, "0x0a", "0x0b"),
    ChainList(3, (PART.stream, NETWORK), True),
    ChainChanged(PART.stream, 301, b"h" * 32),
    ListHeads(4, "0x0a", b"d" * 32),
    HeadList(4, (ChainHead(PART.stream, 301, b"h" * 32),), True, True),
    Introduce(ANN, 1_767_225_600_000, b"s" * 64),
    Resend(5, PART, Selection(1, 2, 3, 4, ANN, 6, True, b"c" * 36)),
    AskStored(PART, (FRAME,)),
    Acknowledged(PART, (Holding(FRAME, 300, b"d" * 32, True),), b"s" * 64),
    LackingNames(PART, (FRAME,)),
    Declined(PART, (FRAME,)),
    Vote(PART, 2, 1, 300, True),
    Voted(PART, 2, True, False),
    Lead(PART, 2, 300),
    Fetch(PART, 2, 300, b"h" * 32, 299, 2),
    AskEntries(5, PART, 300, 310),
    AskRanges(ticket=6, part=PART, cursor=2**60, after=2**59),
    Ranges(
        ticket=6,
        ranges=(FrameRange(low=2**59, high=2**60, count=300, digest=b"d" * 16),),
        cursor=2**60,
        more=True,
        problem="busy",
    ),
    AskLacking(
        ticket=7, part=PART, report=6, low=2**59, high=2**60, names=b"n" * 36, cursor=b"c" * 36
    ),
    Marked(PART, MARK),
    AskRank(PART),
    Ranked(PART, 3, 2, 1, 300, b"h" * 32, True, MARK),
    Disagree(PART, (MARK,), True),
    Resent(5, (b"frame",), (300,), Selection(start=301), 1, 400, "busy", (Span(310, 320),), (300,)),
    Hand(PART, (b"frame",)),
    Fetched(PART, 2, 300, 290, 300, b"h" * 32, True, (Entry(2, 1_767_225_600_000, b"frame", 5),)),
    Entries(5, PART, 300, b"h" * 32, (Entry(2, 1_767_225_600_000, b"frame"),)),
    Lacking(ticket=7, frames=(b"frame",), more=True, problem="busy"),
]

MESSAGES = st.one_of([wire_types.values(mi.type_info(kind)) for kind in wire_types.CONTROL_TYPES])
PACKETS = st.sampled_from(EXAMPLES).map(codec.encode) | MESSAGES.map(codec.encode)
MSGPACK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text("a\0é", max_size=50)
    | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn, packets: st.SearchStrategy[bytes]) -> bytes:
    """Draw a packet in which a few bytes have been replaced, removed or added."""
    data = bytearray(draw(packets))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


def survive(data: bytes) -> None:
    """Decode: the answer is a RemoteError, or a message that comes back as it went."""
    try:
        message = codec.decode(data)
    except RemoteError:
        return
    assert isinstance(message, wire_types.CONTROL_TYPES)
    assert codec.decode(codec.encode(message)) == message


def reason(function: Any, data: bytes) -> str:
    """Return why a packet is refused."""
    with pytest.raises(RemoteError) as caught:
        function(data)
    return caught.value.reason


# --- Good packets ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", wire_types.CONTROL_TYPES)
@given(data=st.data())
def test_a_message_comes_back_as_it_went(kind: type, data: st.DataObject) -> None:
    message = data.draw(wire_types.values(mi.type_info(kind)))
    packet = codec.encode(message)
    assert codec.kind(packet) == (codec.BULK if kind in wire_types.BULK_TYPES else codec.CONTROL)
    back = codec.decode(packet)
    assert type(back) is kind
    assert back == message
    assert codec.encode(back) == packet


def test_the_packets_are_the_recorded_ones() -> None:
    assert [type(message) for message in EXAMPLES] == list(wire_types.CONTROL_TYPES)
    written = [f"{message}\n    {codec.encode(message).hex()}\n" for message in EXAMPLES]
    _why, _, recorded = GOLDEN.read_text().partition("\n\n")
    assert recorded == "\n".join(written)
    packets = [bytes.fromhex(line) for line in recorded.splitlines() if line.startswith(" ")]
    assert [codec.decode(packet) for packet in packets] == EXAMPLES


def test_an_overgrown_message_of_our_own_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="Status"):
        codec.encode(Status(PART, 1, (ANN,) * codec.MAX_CONTROL_BYTES))


@given(st.integers(0, 255), st.binary(max_size=codec.MAX_ROUTE_BYTES), st.binary(min_size=1))
def test_a_data_packet_falls_apart_into_what_made_it(
    overlay: int, route: bytes, frame: bytes
) -> None:
    packet = codec.carry_head(overlay, route) + frame
    start = codec.frame_start(packet)
    assert codec.kind(packet) == codec.DATA
    assert (packet[2], packet[4:start], packet[start:]) == (overlay, route, frame)


def test_a_route_that_is_too_long_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        codec.carry_head(1, bytes(codec.MAX_ROUTE_BYTES + 1))


# --- Hostile packets ------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_survived(data: bytes) -> None:
    survive(data)
    survive(HEAD + data)
    with suppress(RemoteError):
        assert codec.kind(data) in (codec.CONTROL, codec.DATA, codec.BULK)
    with suppress(RemoteError):
        assert 4 <= codec.frame_start(data) <= 4 + codec.MAX_ROUTE_BYTES


@settings(max_examples=200)
@given(st.sampled_from([0, 1, 2, 3, 4, 15, 16, 18, 19, 48, 49, 57]), st.lists(MSGPACK, max_size=6))
def test_any_msgpack_is_survived(tag: int, elements: list[Any]) -> None:
    part = [PART.stream, PART.partition]
    survive(HEAD + msgspec.msgpack.encode([tag, *elements]))
    survive(HEAD + msgspec.msgpack.encode([tag, part, *elements]))


@settings(max_examples=500)
@given(mutated(PACKETS))
def test_a_mutated_packet_is_survived(data: bytes) -> None:
    survive(data)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_no_single_byte_of_a_packet_can_hurt(message: Control) -> None:
    packet = codec.encode(message)
    for at in range(len(packet)):
        survive(packet[:at])
        assert reason(codec.decode, packet[:at]) in {"malformed", "packet-size"}
        for value in range(256):
            survive(packet[:at] + bytes([value]) + packet[at + 1 :])


def test_text_that_is_not_utf8_is_malformed() -> None:
    packet = codec.encode(Leave(PART))
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"):
        at = packet.index(b"/city")
        hostile = packet[:at] + bad + packet[at + len(bad) :]
        assert reason(codec.decode, hostile) == "malformed"


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"])
def test_a_packet_nested_without_end_is_malformed(nest: bytes) -> None:
    levels = (codec.MAX_CONTROL_BYTES - 200) // len(nest)
    part = msgspec.msgpack.encode([PART.stream, PART.partition])
    for start in (b"", b"\x92\x12", b"\x92\x12\x93" + part[1:], b"\x93\x12" + part):
        assert reason(codec.decode, HEAD + start + nest * levels + b"\0") == "malformed"


@pytest.mark.parametrize("length", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"])
def test_a_length_that_lies_costs_nothing(length: bytes) -> None:
    part = msgspec.msgpack.encode([PART.stream, PART.partition])
    for start in (b"", b"\x92\x12", b"\x96\x10" + part + b"\1", b"\x95\x11" + part + b"\1"):
        assert reason(codec.decode, HEAD + start + length) == "malformed"
    for text in (b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\0"):
        assert reason(codec.decode, HEAD + b"\x92\x12\x92" + text) == "malformed"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "packet-size"),
        (b"\2\0", "packet-size"),
        (b"\0\0\x90", "protocol-version"),
        (b"\4\0\x90", "protocol-version"),
        (b"\1\0\x90", "protocol-version"),
        (b"\5\3\x90", "packet-kind"),
        (b"\5\xff\x90", "packet-kind"),
        (b"\5\1\x90", "packet-kind"),  # data where control was due
        (b"\5\0\x90", "malformed"),
        (b"\5\0\xc0", "malformed"),
        (codec.encode(Leave(PART)) + b"\0", "malformed"),
        (HEAD + bytes(codec.MAX_CONTROL_BYTES - 2), "malformed"),
        (HEAD + bytes(codec.MAX_CONTROL_BYTES - 1), "packet-size"),
    ],
)
def test_a_bad_control_packet_is_refused_with_its_reason(data: bytes, why: str) -> None:
    assert reason(codec.decode, data) == why
    if why == "protocol-version" or data[1:2] > b"\2":
        assert reason(codec.kind, data) == why


def test_a_bad_data_packet_is_refused_with_its_reason() -> None:
    longest = codec.carry_head(1, bytes(codec.MAX_ROUTE_BYTES)) + bytes(MAX_FRAME_BYTES)
    assert codec.frame_start(longest) == 4 + codec.MAX_ROUTE_BYTES
    assert reason(codec.frame_start, longest + b"\0") == "packet-size"
    assert codec.frame_start(b"\3\1\1\0f") == 4
    assert reason(codec.frame_start, b"\3\1\1\0") == "packet-size"
    assert codec.frame_start(b"\3\1\1\x40f") == 68  # beyond the end: `peek` refuses the rest
    assert reason(codec.frame_start, b"\3\1\1\x41f") == "route-size"
