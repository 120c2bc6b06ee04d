"""Every field of everything that is ever decoded has a limit, and the limit is where it says."""

from typing import Annotated, Any

import msgspec
import msgspec.inspect as mi
import pytest

import wire_types
from anabranch.core import codec
from anabranch.core.errors import RemoteError
from anabranch.core.ids import stream_part
from anabranch.core.messages import Contact, Control, Leave, Meet, Status
from anabranch.core.messages.data import Body, Item, Items

CONTROLS = {kind.__name__: mi.type_info(kind) for kind in wire_types.CONTROL_TYPES}
EVERYTHING = {
    path: info
    for name, root in wire_types.ROOTS.items()
    for path, info in wire_types.walk(mi.type_info(root), name)
}
CONTROL_EDGES = [edge for name, info in CONTROLS.items() for edge in wire_types.edges(info, name)]
DATA_EDGES = [
    (name, root, value, allowed)
    for label, root in (("Body", Body), ("Items", Items))
    for name, value, allowed in wire_types.edges(mi.type_info(root), label)
]


def packed(value: Any, bulk: bool = False) -> bytes:
    """Make a control packet of anything, limits or not."""
    kind = codec.BULK if bulk or isinstance(value, wire_types.BULK_TYPES) else codec.CONTROL
    return bytes([codec.PROTOCOL_VERSION, kind]) + msgspec.msgpack.encode(value)


def test_every_field_on_the_wire_has_a_limit() -> None:
    found = {path: wire_types.complaint(info) for path, info in EVERYTHING.items()}
    assert {path: lacks for path, lacks in found.items() if lacks} == {}


def test_the_walk_reaches_every_struct() -> None:
    structs = {info.cls for info in EVERYTHING.values() if isinstance(info, mi.StructType)}
    assert structs >= {*wire_types.CONTROL_TYPES, Contact, Body, Item}
    assert "Contact.address" in EVERYTHING
    assert "Status.neighbours[]" in EVERYTHING


class Loose(msgspec.Struct, array_like=True):
    """Breaks every rule that `complaint` knows, one per field."""

    text: str
    data: bytes
    number: int
    half: Annotated[int, msgspec.Meta(ge=0)]
    many: tuple[bool, ...]
    inner: Annotated[tuple[bytes, ...], msgspec.Meta(max_length=3)]
    odd: dict[str, int]


def test_a_field_without_a_limit_would_be_seen() -> None:
    visited = wire_types.walk(mi.type_info(Loose), "Loose")
    bad = {path for path, info in visited if wire_types.complaint(info)}
    names = {f"Loose.{name}" for name in ("text", "data", "number", "half", "many", "odd")}
    assert bad == names | {"Loose", "Loose.inner[]"}


@pytest.mark.parametrize(
    ("value", "allowed"),
    [pytest.param(value, allowed, id=name) for name, value, allowed in CONTROL_EDGES],
)
def test_a_control_field_ends_at_its_limit(value: Control, allowed: bool) -> None:
    if allowed:
        assert codec.decode(packed(value)) == value
    else:
        with pytest.raises(RemoteError, match="malformed"):
            codec.decode(packed(value))


@pytest.mark.parametrize(
    ("root", "value", "allowed"),
    [pytest.param(root, value, allowed, id=name) for name, root, value, allowed in DATA_EDGES],
)
def test_a_field_of_a_frame_ends_at_its_limit(root: Any, value: Any, allowed: bool) -> None:
    data = msgspec.msgpack.encode(value)
    if allowed:
        assert msgspec.msgpack.decode(data, type=root) == value
    else:
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(data, type=root)


@pytest.mark.parametrize("name", sorted({*CONTROLS} - {k.__name__ for k in wire_types.BULK_TYPES}))
def test_the_largest_message_fits_a_packet(name: str) -> None:
    message = wire_types.largest(CONTROLS[name])
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("name", CONTROLS)
def test_a_message_has_neither_more_nor_fewer_elements(name: str) -> None:
    message = wire_types.smallest(CONTROLS[name])
    elements = msgspec.to_builtins(message, builtin_types=(bytes,))
    bulk = isinstance(message, wire_types.BULK_TYPES)
    assert codec.decode(packed(elements, bulk)) == message
    with pytest.raises(RemoteError, match="malformed"):
        codec.decode(packed(elements, not bulk))
    required = 1 + sum(field.required for field in CONTROLS[name].fields)
    for wrong in ([*elements, 0], elements[: required - 1], elements[1:], [], {}, None):
        with pytest.raises(RemoteError, match="malformed"):
            codec.decode(packed(wrong, bulk))


def test_tags_are_never_used_twice_and_keep_their_meaning() -> None:
    tags = {name: info.tag for name, info in CONTROLS.items()}
    assert len(set(tags.values())) == len(tags)
    first = {"Meet": 1, "Bye": 2, "SlowDown": 3, "Status": 16, "Instruction": 17, "Leave": 18}
    assert first.items() <= tags.items()


def test_the_wire_takes_the_partitions_that_a_node_can_name() -> None:
    stream = "0x" + "0a" * 20 + "/a"
    for partition in (0, 99):
        assert codec.decode(packed([18, [stream, partition]])).part == stream_part(
            stream, partition
        )
    with pytest.raises(RemoteError, match="malformed"):
        codec.decode(packed([18, [stream, 100]]))


def test_what_a_message_leaves_out_has_its_default() -> None:
    part = wire_types.smallest(CONTROLS["Leave"]).part
    assert codec.decode(packed([1, [part.stream, 0]])) == Meet(part, False, 0)
    assert codec.decode(packed([16, [part.stream, 0], 0])) == Status(part, 0, (), (), "")
    assert codec.decode(packed([18, [part.stream, 0]])) == Leave(part)
