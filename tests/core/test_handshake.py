"""The opening of a link: who proves what, and every way in which a proof must not hold."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

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
from anabranch.core.link_mac import MAC_BYTES
from anabranch.core.messages import Control
from wire_types import complaint, walk

ALICE, BOB, EVE = (Identity(bytes([n]) * 32) for n in (1, 2, 3))
NETWORK, OTHER = b"n" * 32, b"o" * 32
KEY = b"k" * 32  # any 32 bytes are a key of X25519, except a few
GOLDEN = Path(__file__).parent / "golden" / "handshake.txt"
WEAK_KEYS = (bytes(32), (1).to_bytes(32, "little"), (2**255 - 19).to_bytes(32, "little"))


def verify(node: NodeId, digest: bytes, signature: bytes) -> bool:
    return KnownKeys().verify(node, digest, signature)


def drawn(nonce: bytes) -> Callable[[int], bytes]:
    """Return an entropy that gives this nonce first, and then other bytes that follow from it."""
    made = iter((nonce, bytes(byte ^ 0x55 for byte in nonce)))
    return lambda size: next(made)


def dialling(wanted: NodeId | None = BOB.node, nonce: bytes = b"d" * 32) -> Dialling:
    return Dialling(ALICE, NETWORK, drawn(nonce), wanted)


def accepting(nonce: bytes = b"a" * 32, me: Identity = BOB) -> Accepting:
    return Accepting(me, NETWORK, drawn(nonce))


def opened(path: Callable[[int, bytes], bytes] = lambda number, message: message) -> None:
    """Open a link; `path` returns what becomes of each message."""
    alice, bob = proved(path)
    alice.finish(path(3, bob.ready()))


def proved(
    path: Callable[[int, bytes], bytes] = lambda number, message: message,
) -> tuple[Dialling, Accepting]:
    """Open a link up to the Ready, which is not sent yet."""
    alice, bob = dialling(), accepting()
    _, proof = alice.prove(path(1, bob.welcome(path(0, alice.open()))), verify)
    bob.admit(path(2, proof), verify)
    return alice, bob


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
    alice.finish(bob.ready())


def test_another_network_is_refused_by_name() -> None:
    hello = Hello(OTHER, ALICE.node, b"d" * 32, KEY)
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
    welcome = eve.welcome(Dialling(ALICE, NETWORK, drawn(b"d" * 32), None).open())
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
        (encode(Hello(b"short", ALICE.node, b"d" * 32, KEY)), "malformed"),
        (encode(Hello(NETWORK, NodeId(b"short"), b"d" * 32, KEY)), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"short", KEY)), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"d" * 32, b"short")), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"d" * 32, KEY, b"x" * 21)), "malformed"),
        (encode(Hello(NETWORK, ALICE.node, b"d" * 32, KEY, b"x")), "wrong-node"),
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


def test_no_tag_of_a_control_message_is_one_of_the_handshake() -> None:
    tags = [
        kind.__struct_config__.tag
        for union in (Control, handshake.Opening)
        for kind in get_args(union)
    ]
    assert len(set(tags)) == len(tags) > 4
    assert {kind.__struct_config__.tag for kind in get_args(handshake.Opening)} == {
        *range(128, 132)
    }


def test_every_field_on_the_wire_has_a_limit() -> None:
    info = msgspec.inspect.type_info(handshake.Opening)
    found = [(name, complaint(kind)) for name, kind in walk(info, "Opening")]
    assert [line for line in found if line[1]] == []


# --- Proofs that must not hold --------------------------------------------------------------


def signed(role: bytes, hello: Hello, welcome: Welcome) -> bytes:
    return handshake.digest(role, hello, welcome.node, welcome.nonce, welcome.key)


def test_a_proof_by_another_key_is_refused() -> None:
    alice, bob = dialling(), accepting()
    welcome = decode(bob.welcome(alice.open()), Welcome)
    forged = Proof(EVE.sign(signed(b"dialler", alice.hello, welcome)))
    with pytest.raises(RemoteError, match="bad-proof"):
        bob.admit(encode(forged), verify)


def test_a_welcome_by_another_key_is_refused() -> None:
    with spoiled_welcome("bad-proof") as (alice, welcome):
        forged = EVE.sign(signed(b"acceptor", alice.hello, welcome))
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
    base = Hello(NETWORK, ALICE.node, b"d" * 32, KEY)
    theirs = (BOB.node, b"a" * 32, b"b" * 32)
    variants = [
        (b"dialler", base, *theirs),
        (b"acceptor", base, *theirs),
        (b"keys", base, *theirs),
        (b"dialler", msgspec.structs.replace(base, network=OTHER), *theirs),
        (b"dialler", msgspec.structs.replace(base, node=EVE.node), *theirs),
        (b"dialler", msgspec.structs.replace(base, nonce=b"e" * 32), *theirs),
        (b"dialler", msgspec.structs.replace(base, key=b"e" * 32), *theirs),
        (b"dialler", base, EVE.node, *theirs[1:]),
        (b"dialler", base, BOB.node, b"b" * 32, b"b" * 32),
        (b"dialler", base, BOB.node, b"a" * 32, b"c" * 32),
        # The same bytes, cut elsewhere.
        (b"dialler" + NETWORK[:1], msgspec.structs.replace(base, network=NETWORK[1:]), *theirs),
    ]
    assert len({handshake.digest(*variant) for variant in variants}) == len(variants)


# --- Keys of a link -------------------------------------------------------------------------


def test_both_sides_derive_the_same_two_keys() -> None:
    alice, bob = proved()
    # No key serves both directions: the same message at the same position has another tag.
    ready = bob.ready()
    assert ready[:-MAC_BYTES] + alice.mac.tag(ready[:-MAC_BYTES]) != ready
    alice, bob = proved()
    alice.finish(bob.ready())
    for sender, receiver in ((alice, bob), (bob, alice)):
        for message in (b"one", b"two"):
            receiver.mac.check(message, sender.mac.tag(message))


@given(st.integers(0, 3), st.integers(0, 250), st.integers(0, 7))
def test_no_link_opens_if_a_bit_was_altered_on_the_path(step: int, at: int, bit: int) -> None:
    def path(number: int, message: bytes) -> bytes:
        if number != step:
            return message
        altered = bytearray(message)
        altered[at % len(message)] ^= 1 << bit
        return bytes(altered)

    with pytest.raises(RemoteError):
        opened(path)


def test_an_ephemeral_secret_is_forgotten_when_it_was_used() -> None:
    for side in proved():
        assert side._key._secret is None


def test_a_ready_without_its_tag_or_with_that_of_another_link_is_refused() -> None:
    stranger = accepting(nonce=b"A" * 32)
    again = dialling()
    _, proof = again.prove(stranger.welcome(again.open()), verify)
    stranger.admit(proof, verify)
    for forged in (encode(Ready()), encode(Ready()) + bytes(MAC_BYTES), b"", stranger.ready()):
        alice, _ = proved()
        with pytest.raises(RemoteError, match="bad-mac"):
            alice.finish(forged)


def test_a_message_of_the_acceptor_that_is_no_ready_is_refused() -> None:
    alice, bob = proved()
    message = encode(Proof(bytes(64)))
    with pytest.raises(RemoteError, match="handshake-order"):
        alice.finish(message + bob.mac.tag(message))


def test_an_ephemeral_key_that_was_exchanged_on_the_path_breaks_the_proof() -> None:
    # The dialler's key was exchanged: the acceptor signed another one than the dialler sent.
    alice, bob = dialling(), accepting()
    welcome = bob.welcome(encode(msgspec.structs.replace(alice.hello, key=KEY)))
    with pytest.raises(RemoteError, match="bad-proof"):
        alice.prove(welcome, verify)
    # The acceptor's key was exchanged.
    with spoiled_welcome("bad-proof") as (alice, answered):
        alice.prove(encode(msgspec.structs.replace(answered, key=KEY)), verify)
    # The acceptor's own Hello was exchanged, and the dialler was given what fits its own.
    alice, bob = dialling(), accepting()
    bob.welcome(encode(msgspec.structs.replace(alice.hello, key=KEY)))
    _, proof = alice.prove(accepting().welcome(alice.open()), verify)
    with pytest.raises(RemoteError, match="bad-proof"):
        bob.admit(proof, verify)


@pytest.mark.parametrize("weak", WEAK_KEYS)
def test_a_key_whose_secret_everybody_knows_is_refused(weak: bytes) -> None:
    # Both proofs hold: it is a node of the network that sends such a key.
    alice = dialling()
    answer = decode(accepting().welcome(alice.open()), Welcome)
    answer = msgspec.structs.replace(answer, key=weak)
    proof = BOB.sign(signed(b"acceptor", alice.hello, answer))
    with pytest.raises(RemoteError, match="weak-key"):
        alice.prove(encode(msgspec.structs.replace(answer, signature=proof)), verify)
    bob, hello = accepting(), msgspec.structs.replace(dialling().hello, key=weak)
    welcome = decode(bob.welcome(encode(hello)), Welcome)
    with pytest.raises(RemoteError, match="weak-key"):
        bob.admit(encode(Proof(ALICE.sign(signed(b"dialler", hello, welcome)))), verify)


def test_no_secret_is_agreed_on_before_the_proof_holds() -> None:
    # A weak key is found by agreeing on a secret; that it goes unnoticed shows that none was.
    with spoiled_welcome("bad-proof") as (alice, welcome):
        alice.prove(encode(msgspec.structs.replace(welcome, key=WEAK_KEYS[0])), verify)
    bob, hello = accepting(), msgspec.structs.replace(dialling().hello, key=WEAK_KEYS[0])
    bob.welcome(encode(hello))
    with pytest.raises(RemoteError, match="bad-proof"):
        bob.admit(encode(Proof(bytes(64))), verify)


def test_entropy_is_drawn_for_no_hello_that_is_refused() -> None:
    def none(size: int) -> bytes:
        raise AssertionError("nothing is to be drawn")

    with pytest.raises(RemoteError, match="wrong-network"):
        Accepting(BOB, NETWORK, none).welcome(encode(Hello(OTHER, ALICE.node, b"d" * 32, KEY)))


def test_every_message_of_an_opening_is_as_it_is_on_record() -> None:
    alice, bob = dialling(), accepting()
    hello = alice.open()
    welcome = bob.welcome(hello)
    _, proof = alice.prove(welcome, verify)
    bob.admit(proof, verify)
    said = {
        "Hello": hello,
        "Welcome": welcome,
        "Proof": proof,
        "Ready, with its tag": bob.ready(),
        "tag of the first message b'first' of the dialler": alice.mac.tag(b"first"),
        "tag of the second message b'second' of the acceptor": bob.mac.tag(b"second"),
    }
    lines = [f"{name}\n    {message.hex()}\n" for name, message in said.items()]
    assert "".join(lines) == GOLDEN.read_text()
    assert max(map(len, said.values())) == len(welcome) == 194
