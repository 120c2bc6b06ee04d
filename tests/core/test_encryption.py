"""Encryption: what was locked opens in its own place, with its own key, and in no other way."""

import hashlib
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.encryption import (
    NEXT_KEY_BYTES,
    GroupKey,
    decrypt,
    encrypt,
    key_id,
    new_key,
    seal,
    unseal,
    unwrap,
    wrap,
)
from anabranch.core.errors import RemoteError
from anabranch.core.identity import CheapKeys, Curve, KnownKeys
from anabranch.core.ids import FrameHead, chain_key, part_key
from machines import NODES, OTHER, PART

HEAD = FrameHead(part_key(PART), chain_key(NODES[1], 7), 4, 5, 9, 2)
DOMAIN = b"anabranch key id v1\0"
KEY = GroupKey(b"i" * 16, b"k" * 32)
NEXT = GroupKey(b"j" * 16, b"n" * 32)
NONCE = b"a nonce once"

# Every change of the place of a frame; `previous` and `count` are the signature's matter alone.
ELSEWHERE = [
    {"part": part_key(OTHER)},
    {"chain": chain_key(NODES[2], 7)},
    {"chain": chain_key(NODES[1], 8)},
    {"first": 6},
    {"last": 10},
]


def entropy(seed: int = 1) -> Any:
    return random.Random(seed).randbytes


def refused(function: Any, *args: Any) -> str:
    with pytest.raises(RemoteError) as caught:
        function(*args)
    return caught.value.reason


# --- Items ----------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.binary(min_size=32, max_size=32))
def test_items_open_with_the_key_that_locked_them(items: bytes, secret: bytes) -> None:
    locked = encrypt(GroupKey(b"i" * 16, secret), HEAD, items, NONCE)
    assert decrypt(secret, HEAD, locked) == items
    assert len(locked) == 12 + len(items) + 16
    other = bytes([secret[0] ^ 1]) + secret[1:]
    assert refused(decrypt, other, HEAD, locked) == "undecryptable"


@given(st.data())
def test_no_flipped_bit_goes_unnoticed(data: st.DataObject) -> None:
    locked = bytearray(encrypt(KEY, HEAD, b"items", NONCE))
    locked[data.draw(st.integers(0, len(locked) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert refused(decrypt, KEY.secret, HEAD, bytes(locked)) == "undecryptable"


@pytest.mark.parametrize("place", ELSEWHERE)
def test_items_open_in_their_own_place_only(place: dict[str, Any]) -> None:
    locked = encrypt(KEY, HEAD, b"items", NONCE)
    elsewhere = msgspec.structs.replace(HEAD, **place)
    assert refused(decrypt, KEY.secret, elsewhere, locked) == "undecryptable"


@pytest.mark.parametrize("length", [0, 11, 12, 27])
def test_what_is_too_short_is_refused(length: int) -> None:
    locked = encrypt(KEY, HEAD, b"", NONCE)
    assert decrypt(KEY.secret, HEAD, locked) == b""
    assert refused(decrypt, KEY.secret, HEAD, locked[:length]) == "undecryptable"


@pytest.mark.parametrize("secret", [b"", b"k" * 16, b"k" * 31, b"k" * 33])
def test_what_is_no_key_opens_nothing(secret: bytes) -> None:
    assert refused(decrypt, secret, HEAD, encrypt(KEY, HEAD, b"", NONCE)) == "undecryptable"


def test_the_nonce_makes_the_difference() -> None:
    one, other = (encrypt(KEY, HEAD, b"items", nonce) for nonce in (NONCE, b"another one."))
    assert one[12:17] != other[12:17]


def test_a_new_key_is_all_entropy() -> None:
    draw = entropy()
    one, two = new_key(draw), new_key(draw)
    assert (len(one.id), len(one.secret)) == (16, 32)
    assert len({one.id, two.id, one.secret[4:18], two.secret[4:18]}) == 4
    assert new_key(entropy()) == one


def test_a_key_fits_its_id_and_no_other_does() -> None:
    key = new_key(entropy())
    assert key.fits
    assert key.id == key_id(key.secret) == hashlib.sha256(DOMAIN + key.secret).digest()[:16]
    for false in (
        GroupKey(key.id, key.secret[:-1] + b"x"),
        GroupKey(key.id, key.secret + b"x"),
        GroupKey(key.id, b""),
        GroupKey(key.id[:-1] + b"x", key.secret),
        GroupKey(key_id(b"short"), b"short"),
        GroupKey(b"", key.secret),
    ):
        assert not false.fits


@pytest.mark.parametrize(("known", "counted"), [(0, 0), (7, 7), (1 << 40, (1 << 32) - 1)])
def test_a_key_says_how_many_removals_its_maker_knew_of(known: int, counted: int) -> None:
    key = new_key(entropy(), known)
    assert (key.removals, key.fits) == (counted, True)
    assert key.secret[4:] == new_key(entropy()).secret[4:]


# --- The next key ---------------------------------------------------------------------------


def test_the_next_key_is_for_who_has_this_one() -> None:
    wrapped = wrap(KEY, NEXT, HEAD, NONCE)
    assert unwrap(KEY, wrapped, HEAD) == NEXT
    assert len(wrapped) == NEXT_KEY_BYTES
    assert NEXT.secret not in wrapped
    assert refused(unwrap, GroupKey(KEY.id, b"x" * 32), wrapped, HEAD) == "undecryptable"
    assert refused(unwrap, GroupKey(b"x" * 16, KEY.secret), wrapped, HEAD) == "undecryptable"


@given(st.integers(0, NEXT_KEY_BYTES * 8 - 1))
def test_a_wrapped_key_that_was_touched_is_refused(bit: int) -> None:
    wrapped = bytearray(wrap(KEY, NEXT, HEAD, NONCE))
    wrapped[bit // 8] ^= 1 << bit % 8  # the id of the next key is authenticated, too
    assert refused(unwrap, KEY, bytes(wrapped), HEAD) == "undecryptable"


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_wrapped_key_is_taken_from_its_own_frame_only(place: dict[str, Any]) -> None:
    elsewhere = msgspec.structs.replace(HEAD, **place)
    assert refused(unwrap, KEY, wrap(KEY, NEXT, HEAD, NONCE), elsewhere) == "undecryptable"


@pytest.mark.parametrize("length", [0, 16, NEXT_KEY_BYTES - 1, NEXT_KEY_BYTES + 1])
def test_a_wrapped_key_has_one_length(length: int) -> None:
    wrapped = (wrap(KEY, NEXT, HEAD, NONCE) + b"x")[:length]
    assert refused(unwrap, KEY, wrapped, HEAD) == "next-key"


def test_a_wrapped_key_is_not_taken_for_items_nor_items_for_a_key() -> None:
    wrapped = wrap(KEY, NEXT, HEAD, NONCE)
    assert refused(decrypt, KEY.secret, HEAD, wrapped[16:]) == "undecryptable"
    items = encrypt(KEY, HEAD, NEXT.secret, NONCE)
    assert refused(unwrap, KEY, NEXT.id + items, HEAD) == "undecryptable"


# --- Sealing --------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", [KnownKeys(), CheapKeys()])
@given(secret=st.binary(max_size=100), context=st.binary(max_size=40))
@settings(max_examples=20)
def test_what_is_sealed_opens_for_one_and_in_its_context(
    curve: Curve, secret: bytes, context: bytes
) -> None:
    alice, eve = curve.identity(b"\1" * 32), curve.identity(b"\2" * 32)
    sealed = seal(curve, entropy(), alice.public, secret, context)
    assert unseal(alice, sealed, context) == secret
    assert len(sealed) == 33 + len(secret) + 16
    assert refused(unseal, eve, sealed, context) == "undecryptable"
    assert refused(unseal, alice, sealed, context + b"x") == "undecryptable"


@pytest.mark.parametrize("curve", [KnownKeys(), CheapKeys()])
@given(data=st.data())
@settings(max_examples=40)
def test_what_was_sealed_and_touched_is_refused(curve: Curve, data: st.DataObject) -> None:
    alice = curve.identity(b"\1" * 32)
    sealed = bytearray(seal(curve, entropy(), alice.public, b"secret", b""))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert refused(unseal, alice, bytes(sealed), b"") in ("undecryptable", "public-key")


@pytest.mark.parametrize("length", [0, 32, 33, 48])
def test_what_is_too_short_to_be_sealed_is_refused(length: int) -> None:
    curve = KnownKeys()
    alice = curve.identity(b"\1" * 32)
    sealed = seal(curve, entropy(), alice.public, b"", b"")[:length]
    assert refused(unseal, alice, sealed, b"") in ("undecryptable", "public-key")


def test_each_seal_is_made_with_a_fresh_key() -> None:
    curve = KnownKeys()
    draw, alice = entropy(), curve.identity(b"\1" * 32)
    one, two = (seal(curve, draw, alice.public, b"secret", b"") for _ in range(2))
    assert one[:33] != two[:33]
    assert one[33:] != two[33:]


def test_sealing_to_what_is_no_public_key_is_a_peers_mistake() -> None:
    assert refused(seal, KnownKeys(), entropy(), bytes(33), b"secret", b"") == "public-key"
