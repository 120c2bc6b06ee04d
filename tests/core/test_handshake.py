"""The opening of a link: who proves what, and every way in which a proof must not hold."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import handshake
from anabranch.core.codec import PROTOCOL_VERSION
from anabranch.core.errors import RemoteError
from anabranch.core.handshake import (
    Accepting,
    Dialling,
    Hello,
    Proof,
    Ready,
    Welcome,
    decode,
    encode,
)
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId
from wire_types import complaint, walk

ALICE, BOB, EVE = (Identity(bytes([n]) * 32) for n in (1, 2, 3))
NETWORK, OTHER = b"n" * 32, b"o" * 32


def verify(node: NodeId, digest: bytes, signature: bytes) -> bool:
    return KnownKeys().verify(node, digest, signature)


def dialling(wanted: NodeId | None = BOB.node, nonce: bytes = b"d" * 32) -> Dialling:
    return Dialling(ALICE, NETWORK, nonce, wanted)


def accepting(nonce: bytes = b"a" * 32, me: Identity = BOB) -> Accepting:
    return Accepting(me, NETWORK, nonce)


@contextmanager
def spoiled_welcome(reason: str) -> Iterator[tuple[Dialling, Welcome]]:
    """Hand out a dialler and a good Welcome; what is made of it must be refused for the reason."""
    alice = dialling()
    welcome = decode(accepting().welcome(alice.open()), Welcome)
    with pytest.raises(RemoteError, match=f"^{reason}"):
        yield alice, welcome


@pytest.mark.parametrize("wanted", [BOB.node, None])
def test_both_learn_who_the_other_is(wanted: NodeId | None) -> None:
    alice, bob = dialling(wanted), accepting()
    peer, proof = alice.prove(bob.welcome(alice.open()), verify)
    assert peer == alice.peer == BOB.node
    assert bob.admit(proof, verify) == ALICE.node
    alice.finish(encode(Ready()))


def test_another_network_is_refused_by_name() -> None:
    hello = Hello(OTHER, ALICE.node, b"d" * 32)
    with pytest.raises(RemoteError) as caught:
        accepting().welcome(encode(hello))
    assert (caught.value.reason, caught.value.detail) == ("wrong-network", OTHER.hex())
    with spoiled_welcome("wrong-network") as (alice, welcome):
        alice.prove(encode(msgspec.structs.replace(welcome, network=OTHER)), verify)


def test_another_node_than_the_one_dialled_is_refused() -> None:
    with pytest.raises(RemoteError, match="wrong-node"):
        accepting(me=EVE).welcome(dialling(BOB.node).open())
    # And if it answers all the same, in its own name, the dialler will not have it.
    eve = accepting(me=EVE)
    welcome = eve.welcome(Dialling(ALICE, NETWORK, b"d" * 32, None).open())
    with pytest.raises(RemoteError, match="wrong-node"):
        dialling(BOB.node).prove(welcome, verify)


def test_a_node_does_not_link_with_itself() -> None:
    with pytest.raises(RemoteError, match="self-dial"):
        accepting(me=ALICE).welcome(dialling(ALICE.node).open())
    with spoiled_welcome("self-dial") as (alice, welcome):
        alice.prove(encode(msgspec.structs.replace(welcome, node=ALICE.node)), verify)


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, 255])
def test_another_version_is_named_before_anything_else_is_read(version: int) -> None:
    with pytest.raises(RemoteError, match="protocol-version"):
        accepting().welcome(bytes([version]) + b"of another shape")


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "handshake-size"),
        (bytes([PROTOCOL_VERSION]), "handshake-size"),
        (bytes([PROTOCOL_VERSION]) * 257, "handshake-size"),
        (bytes([PROTOCOL_VERSION]) + b"\xc1", "malformed"),
        (encode(Hello(b"short", ALICE.node, b"d" * 32)), "malformed"),
        (encode(Hello(NETWORK, NodeId(b"short"), b"d" * 32)), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"short")), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"d" * 32, b"x" * 21)), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"d" * 32, b"x")), "wrong-node"),
        (encode(Ready()), "handshake-order"),
        (encode(Proof(bytes(64))), "handshake-order"),
    ],
)
def test_what_is_no_hello_is_refused(packet: bytes, reason: str) -> None:
    with pytest.raises(RemoteError) as caught:
        accepting().welcome(packet)
    assert caught.value.reason == reason


@given(st.binary(max_size=300))
def test_garbage_raises_remote_errors_and_nothing_else(garbage: bytes) -> None:
    for packet in (garbage, bytes([PROTOCOL_VERSION]) + garbage):
        for step in (accepting().welcome, lambda p: dialling().prove(p, verify)):
            with pytest.raises(RemoteError):
                step(packet)


def test_every_field_on_the_wire_has_a_limit() -> None:
    info = msgspec.inspect.type_info(handshake.Opening)
    found = [(name, complaint(kind)) for name, kind in walk(info, "Opening")]
    assert [line for line in found if line[1]] == []


# --- Proofs that must not hold --------------------------------------------------------------


def test_a_proof_by_another_key_is_refused() -> None:
    alice, bob = dialling(), accepting()
    bob.welcome(alice.open())
    forged = Proof(EVE.sign(handshake.digest(b"dialler", alice.hello, BOB.node, b"a" * 32)))
    with pytest.raises(RemoteError, match="bad-proof"):
        bob.admit(encode(forged), verify)


def test_a_welcome_by_another_key_is_refused() -> None:
    with spoiled_welcome("bad-proof") as (alice, welcome):
        forged = EVE.sign(handshake.digest(b"acceptor", alice.hello, BOB.node, welcome.nonce))
        alice.prove(encode(msgspec.structs.replace(welcome, signature=forged)), verify)


def test_what_was_said_once_cannot_be_said_again() -> None:
    alice, bob = dialling(), accepting()
    hello = alice.open()
    welcome = bob.welcome(hello)
    _, proof = alice.prove(welcome, verify)
    assert bob.admit(proof, verify) == ALICE.node
    # Eve has heard all of it. To Bob she repeats Alice's words, to Alice she repeats Bob's.
    later = accepting(nonce=b"A" * 32)
    later.welcome(hello)
    with pytest.raises(RemoteError, match="bad-proof"):
        later.admit(proof, verify)
    with pytest.raises(RemoteError, match="bad-proof"):
        dialling(nonce=b"D" * 32).prove(welcome, verify)


def test_a_signature_cannot_be_sent_back_to_who_made_it() -> None:
    # Eve dials Bob in Alice's name and returns his own signature as hers.
    alice, bob = dialling(), accepting()
    welcome = decode(bob.welcome(alice.open()), Welcome)
    with pytest.raises(RemoteError, match="bad-proof"):
        bob.admit(encode(Proof(welcome.signature)), verify)


def test_a_proof_made_for_one_node_does_not_hold_at_another() -> None:
    # Alice dials Eve, who passes her words on to Bob to be Alice there.
    alice, eve = dialling(EVE.node), accepting(nonce=b"a" * 32, me=EVE)
    _, proof = alice.prove(eve.welcome(alice.open()), verify)
    bob = accepting(nonce=b"a" * 32)
    bob.welcome(encode(msgspec.structs.replace(alice.hello, wanted=BOB.node)))
    with pytest.raises(RemoteError, match="bad-proof"):
        bob.admit(proof, verify)


def test_no_two_openings_share_a_digest() -> None:
    base = Hello(NETWORK, ALICE.node, b"d" * 32)
    variants = [
        (b"dialler", base, BOB.node, b"a" * 32),
        (b"acceptor", base, BOB.node, b"a" * 32),
        (b"dialler", msgspec.structs.replace(base, network=OTHER), BOB.node, b"a" * 32),
        (b"dialler", msgspec.structs.replace(base, node=EVE.node), BOB.node, b"a" * 32),
        (b"dialler", msgspec.structs.replace(base, nonce=b"e" * 32), BOB.node, b"a" * 32),
        (b"dialler", base, EVE.node, b"a" * 32),
        (b"dialler", base, BOB.node, b"b" * 32),
        # The same bytes, cut elsewhere.
        (
            *(b"dialler" + NETWORK[:1], msgspec.structs.replace(base, network=NETWORK[1:])),
            *(BOB.node, b"a" * 32),
        ),
    ]
    assert len({handshake.digest(*variant) for variant in variants}) == len(variants)
