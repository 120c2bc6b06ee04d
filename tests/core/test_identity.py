"""Keys and signatures: known answers, and every way in which a signature must not hold."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import CheapIdentity, CheapKeys, Curve, Identity, KnownKeys
from anabranch.core.ids import NodeId, show

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

ALICE = Identity(b"\1" * 32)
BOB = Identity(b"\2" * 32)
DIGEST = hashlib.sha256(b"a frame").digest()

DIGESTS = st.binary(min_size=32, max_size=32)
SECRETS = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32))


def knowing(*publishers: Identity) -> KnownKeys:
    """Make a verifier that has met these."""
    keys = KnownKeys()
    for publisher in publishers:
        assert keys.verify(publisher.node, bytes(32), publisher.sign(bytes(32)))
    return keys


def high_s(signature: bytes) -> bytes:
    """Make the other signature of the same digest that plain ECDSA would take: (r, n - s)."""
    return signature[:32] + (ORDER - int.from_bytes(signature[32:])).to_bytes(32)


# --- Known answers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "address"),
    [
        (1, "0x7e5f4552091a69125d5dfcb7b8c2659029395bdf"),
        (2, "0x2b5ad5c4795c026514f8317c7a215e218dccd6cf"),
        (3, "0x6813eb9362372eef6200f3b1dbc3f819671cba69"),
    ],
)
def test_addresses_are_those_of_ethereum(secret: int, address: str) -> None:
    assert show(Identity(secret.to_bytes(32)).node) == address


def test_signing_is_that_of_rfc_6979() -> None:
    # A widely published vector for secp256k1 with SHA-256.
    digest = hashlib.sha256(b"Satoshi Nakamoto").digest()
    assert Identity((1).to_bytes(32)).sign(digest).hex() == (
        "934b1ea10a4b3c1757e2b0c017d0b6143ce3c9a7e6a4a49860d7a6ab210ee3d8"
        "2442ce9d2b916064108014783e923ec36b49743e2ffa1c4496f01a512aafd9e5"
    )


@pytest.mark.parametrize(
    "secret",
    [b"", b"\1" * 31, b"\1" * 33, bytes(32), ORDER.to_bytes(32), b"\xff" * 32],
    ids=["empty", "short", "long", "zero", "order", "greatest"],
)
def test_what_is_no_key_is_refused(secret: bytes) -> None:
    with pytest.raises(LocalError):
        Identity(secret)


# --- Signatures that hold, and that do not --------------------------------------------------


@given(SECRETS, DIGESTS)
def test_a_signature_holds_the_first_time_and_later(secret: bytes, digest: bytes) -> None:
    signer, keys = Identity(secret), KnownKeys()
    signature = signer.sign(digest)
    assert signature == Identity(secret).sign(digest)
    assert len(signature) == 64
    assert 0 < int.from_bytes(signature[32:]) <= ORDER // 2
    assert keys.verify(signer.node, digest, signature)
    assert keys.verify(signer.node, digest, signature)


@given(DIGESTS, DIGESTS)
def test_a_signature_holds_for_its_digest_only(digest: bytes, other: bytes) -> None:
    signature = ALICE.sign(digest)
    for keys in (KnownKeys(), knowing(ALICE)):
        assert keys.verify(ALICE.node, other, signature) is (digest == other)


@given(DIGESTS)
def test_a_high_s_is_rejected_whether_or_not_the_publisher_is_known(digest: bytes) -> None:
    twin = high_s(ALICE.sign(digest))
    keys = KnownKeys()
    assert not keys.verify(ALICE.node, digest, twin)
    assert len(keys) == 0
    assert not knowing(ALICE).verify(ALICE.node, digest, twin)


@pytest.mark.parametrize("known", [False, True])
def test_no_flipped_bit_of_a_signature_goes_unnoticed(known: bool) -> None:
    signature = int.from_bytes(ALICE.sign(DIGEST))
    keys = knowing(ALICE) if known else KnownKeys()
    for bit in range(512):
        flipped = (signature ^ 1 << bit).to_bytes(64)
        assert not keys.verify(ALICE.node, DIGEST, flipped), bit
    assert len(keys) == known


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("r", [0, 1, ORDER - 1, ORDER, ORDER + 1, 2**256 - 1])
@pytest.mark.parametrize("s", [0, 1, ORDER - 1, ORDER, 2**256 - 1])
def test_degenerate_signatures_are_rejected(r: int, s: int, known: bool) -> None:
    keys = knowing(ALICE) if known else KnownKeys()
    assert not keys.verify(ALICE.node, DIGEST, r.to_bytes(32) + s.to_bytes(32))


# --- What a verifier remembers --------------------------------------------------------------


def test_a_wrong_publisher_is_rejected_and_does_not_poison_the_cache() -> None:
    keys = KnownKeys()
    assert not keys.verify(BOB.node, DIGEST, ALICE.sign(DIGEST))
    assert not keys.verify(NodeId(bytes(20)), DIGEST, ALICE.sign(DIGEST))
    assert len(keys) == 0
    assert keys.verify(BOB.node, DIGEST, BOB.sign(DIGEST))
    assert keys.verify(ALICE.node, DIGEST, ALICE.sign(DIGEST))
    assert not keys.verify(BOB.node, DIGEST, ALICE.sign(DIGEST))
    assert not keys.verify(ALICE.node, DIGEST, BOB.sign(DIGEST))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 4))
def test_the_cache_is_bounded_and_keeps_who_was_heard_last(
    heard: list[tuple[int, bool]], bound: int
) -> None:
    keys = KnownKeys(bound)
    recent: list[NodeId] = []
    for who, honest in heard:
        signer = Identity(bytes([who + 1]) * 32)
        digest = DIGEST if honest else bytes(32)
        assert keys.verify(signer.node, DIGEST, signer.sign(digest)) is honest
        if honest or signer.node in recent:
            recent = [*(node for node in recent if node != signer.node), signer.node][-bound:]
        assert list(keys._keys) == recent
    assert len(keys) <= bound


# --- The stand-in for simulation ------------------------------------------------------------


@given(st.binary(min_size=1, max_size=64), DIGESTS)
def test_a_cheap_signature_is_deterministic_and_holds(secret: bytes, digest: bytes) -> None:
    keys = CheapKeys()
    signer = keys.identity(secret)
    signature = signer.sign(digest)
    assert signature == CheapIdentity(secret).sign(digest)
    assert (len(signer.node), len(signature)) == (20, 64)
    assert keys.verify(signer.node, digest, signature)


@given(DIGESTS, DIGESTS)
def test_a_cheap_node_cannot_sign_for_another(digest: bytes, other: bytes) -> None:
    keys = CheapKeys()
    alice, bob = keys.identity(b"alice"), keys.identity(b"bob")
    assert alice.node != bob.node
    assert not keys.verify(bob.node, digest, alice.sign(digest))
    assert keys.verify(alice.node, other, alice.sign(digest)) is (digest == other)


def test_a_cheap_node_that_nobody_made_known_is_not_believed() -> None:
    stranger = CheapIdentity(b"stranger")
    assert not CheapKeys().verify(stranger.node, DIGEST, stranger.sign(DIGEST))


def test_a_cheap_node_holds_no_secret_but_its_own() -> None:
    keys = CheapKeys()
    alice, bob = keys.identity(b"alice"), keys.identity(b"bob")
    assert b"bob" not in vars(alice).values()
    assert not any(value is keys for value in vars(alice).values())
    signature = int.from_bytes(bob.sign(DIGEST))
    for bit in range(512):
        assert not keys.verify(bob.node, DIGEST, (signature ^ 1 << bit).to_bytes(64))


# --- Agreeing on secrets --------------------------------------------------------------------


@pytest.mark.parametrize("curve", [KnownKeys(), CheapKeys()])
@given(SECRETS, SECRETS, SECRETS)
@settings(max_examples=20)
def test_two_agree_on_a_secret_that_a_third_does_not_have(
    curve: Curve, one: bytes, two: bytes, three: bytes
) -> None:
    alice, bob, eve = map(curve.identity, (one, two, three))
    agreed = alice.agree(bob.public)
    assert (len(agreed), len(alice.public)) == (32, 33)
    assert agreed == bob.agree(alice.public)
    assert len({one, two, three}) < 3 or agreed not in (
        eve.agree(alice.public),
        eve.agree(bob.public),
    )


@pytest.mark.parametrize("curve", [KnownKeys(), CheapKeys()])
def test_a_public_key_has_the_address_of_its_holder(curve: Curve) -> None:
    alice, bob = curve.identity(b"\1" * 32), curve.identity(b"\2" * 32)
    assert (curve.address(alice.public), curve.address(bob.public)) == (alice.node, bob.node)


def test_the_public_key_and_the_agreement_are_those_of_the_curve() -> None:
    one = Identity((1).to_bytes(32))  # its point is the generator
    generator = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
    assert one.public.hex() == generator
    assert one.agree(BOB.public) == hashlib.sha256(BOB.public).digest()


@pytest.mark.parametrize(
    "public", [b"", bytes(33), b"\2" + b"\xff" * 32, ALICE.public[:-1], ALICE.public + b"\0"]
)
def test_what_is_no_public_key_is_a_peers_mistake(public: bytes) -> None:
    with pytest.raises(RemoteError, match="public-key"):
        ALICE.agree(public)
    with pytest.raises(RemoteError, match="public-key"):
        KnownKeys().address(public)


def test_a_cheap_public_key_that_nobody_has_is_a_peers_mistake() -> None:
    keys = CheapKeys()
    with pytest.raises(RemoteError, match="public-key"):
        keys.address(CheapIdentity(b"stranger").public)
    with pytest.raises(RemoteError, match="public-key"):
        keys.identity(b"alice").agree(b"short")
