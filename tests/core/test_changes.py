"""Changes: they come back as they went, limits stand on every field, and networks keep apart."""

import hashlib

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wire_types
from anabranch.core import changes
from anabranch.core.changes import (
    Change,
    CreateStream,
    EditStream,
    Genesis,
    Right,
    SetPermission,
    decode_change,
    encode_change,
    encode_genesis,
    name_rights,
    network_name,
    pack_page,
    parse_rights,
    unpack_page,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.history import check_signature
from anabranch.core.messages.registry import MAX_CHANGE_BYTES, MAX_PAGE_BYTES, MAX_PAGE_CHANGES
from chains import GENESIS, NET, OWNER, STREAM
from machines import KEYS, NODES

CHANGE = Change(STREAM, (NET,), 1, OWNER.node, 1_000, (CreateStream(partitions=3),))


@pytest.mark.parametrize("root", [Change, Genesis])
def test_every_field_has_a_limit(root: type) -> None:
    found = {
        path: wire_types.complaint(info)
        for path, info in wire_types.walk(mi.type_info(root), root.__name__)
    }
    assert len(found) > 5
    assert {path: lacks for path, lacks in found.items() if lacks} == {}


def test_a_change_comes_back_as_it_went() -> None:
    encoded = encode_change(CHANGE, NET, OWNER.sign)
    assert decode_change(encoded) == CHANGE
    check_signature(encoded, CHANGE, NET, KEYS.verify)


def test_a_change_of_another_network_is_not_valid_here() -> None:
    encoded = encode_change(CHANGE, hashlib.sha256(b"other").digest(), OWNER.sign)
    with pytest.raises(RemoteError, match="change-forged"):
        check_signature(encoded, decode_change(encoded), NET, KEYS.verify)


def test_no_byte_of_a_change_can_be_altered() -> None:
    encoded = encode_change(CHANGE, NET, OWNER.sign)
    for at in range(len(encoded)):
        altered = encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]
        with pytest.raises(RemoteError):
            check_signature(altered, decode_change(altered), NET, KEYS.verify)


def test_a_network_is_named_by_the_hash_of_its_genesis_record() -> None:
    genesis = Genesis(1, "home", 7, OWNER.node, b"n" * 16)
    assert network_name(genesis) == network_name(encode_genesis(genesis))
    assert len(network_name(genesis)) == 32
    others = [
        msgspec.structs.replace(genesis, name="hame"),
        msgspec.structs.replace(genesis, owner=NODES[5]),
        msgspec.structs.replace(genesis, nonce=b"m" * 16),
    ]
    assert len({network_name(g) for g in [genesis, *others]}) == 4
    assert network_name(genesis) != hashlib.sha256(encode_genesis(genesis)).digest()


@given(st.binary(max_size=300))
def test_hostile_bytes_raise_a_remote_error_and_nothing_else(data: bytes) -> None:
    for decode in (decode_change, changes.decode_genesis, unpack_page):
        try:
            decode(data)
        except RemoteError:
            continue


def test_a_change_that_is_too_long_is_refused_where_it_is_made() -> None:
    wide = CreateStream(metadata="\U0001f600" * 4096)
    with pytest.raises(LocalError, match="shorten the metadata"):
        encode_change(msgspec.structs.replace(CHANGE, actions=(wide,)), NET, OWNER.sign)
    with pytest.raises(RemoteError, match="change-malformed"):
        decode_change(bytes(MAX_CHANGE_BYTES + 1))


def test_a_page_takes_what_its_two_bounds_allow() -> None:
    many = [b"%04d" % at for at in range(200)]
    assert unpack_page(pack_page(many, 0)) == tuple(many[:MAX_PAGE_CHANGES])
    assert unpack_page(pack_page(many, 190)) == tuple(many[190:])
    assert unpack_page(pack_page(many, 200)) == unpack_page(pack_page(many, 999)) == ()
    large = [bytes([at]) * MAX_CHANGE_BYTES for at in range(5)]
    packed = pack_page(large, 1)
    assert unpack_page(packed) == tuple(large[1:4])
    assert len(packed) <= MAX_PAGE_BYTES


def test_an_edit_leaves_what_it_does_not_name() -> None:
    before = CreateStream(3, "random-regular", 6, "about", 2, (), (NODES[1],))
    edited = EditStream(metadata="", storage=()).apply(before)
    assert edited == CreateStream(3, "random-regular", 6, "", 2, (), ())
    assert EditStream().apply(before) == before
    assert EditStream(5, "other", 8).apply(before) == CreateStream(
        5, "other", 8, "about", 2, (), (NODES[1],)
    )


def test_rights_have_names() -> None:
    assert parse_rights(["publish", "Grant"]) == Right.PUBLISH | Right.GRANT
    assert name_rights(Right.GRANT | Right.PUBLISH) == ("publish", "grant")
    assert parse_rights(name_rights(31)) == 31
    with pytest.raises(LocalError, match="choose of publish, subscribe, grant, edit, delete"):
        parse_rights(["fly"])


def test_the_encoding_is_what_is_written_down() -> None:
    """Names of networks and heads of chains last for ever: what makes them must not change."""
    assert GENESIS.hex() == (
        "9501a474657374ce3b9ab678c414" + OWNER.node.hex() + "c410" + b"n".hex() * 16
    )
    permission = SetPermission(NODES[5], 3, 9)
    body = msgspec.msgpack.encode(msgspec.structs.replace(CHANGE, actions=(permission,)))
    assert msgspec.msgpack.decode(body) == [
        STREAM, [NET], 1, OWNER.node, 1_000, [[2, NODES[5], 3, 9]],
    ]  # fmt: skip
