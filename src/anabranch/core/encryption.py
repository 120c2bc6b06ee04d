"""How content is kept from who may not read it: AES-256-GCM, and secrets sealed to a public key.

A group key encrypts the items of frames. What GCM authenticates beside them names the frame, so
that a ciphertext opens in its own place only. The next group key may travel inside a frame,
wrapped with the current one. To one user secrets are sealed (ECIES): a fresh key pair agrees with
the user's public key on a secret, HKDF makes a key of it that is used once.

    items of an encrypted frame  = nonce (12) | ciphertext | tag (16)
    next_key of a frame's body   = key id (16) | nonce (12) | wrapped secret (48)
    what is sealed               = public key of the fresh pair (33) | ciphertext | tag (16)

    secret of a group key        = removals (4) | random (28)
    key id                       = first 16 bytes of SHA-256(domain | secret)

A key's id commits to the key, so it does not matter who gives it: none but the right one fits.
Its first bytes count the removals of readers that its maker knew of when it made the key. Who
gives the key away for its maker must know of as many: else it might be one who has not heard of
the removal that the key was made for.

Nonces and fresh secrets come from the injected entropy. A nonce of 96 random bits is safe for
2^32 frames of one key, and a key is used for far fewer (core/group_keys.py).
"""

import hashlib
from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from anabranch.core.errors import RemoteError
from anabranch.core.identity import KEY_BYTES, PUBLIC_KEY_BYTES, Curve, Signer
from anabranch.core.ids import FrameHead

AES_256_GCM = 1  # stands in a frame's body; 0 is for content in the clear
KEY_ID_BYTES = 16
REMOVALS_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
NEXT_KEY_BYTES = KEY_ID_BYTES + NONCE_BYTES + KEY_BYTES + TAG_BYTES

_KEY_ID_DOMAIN = b"anabranch key id v1\0"
_ITEMS_DOMAIN = b"anabranch items v1\0"
_WRAP_DOMAIN = b"anabranch next key v1\0"
_SEAL_DOMAIN = b"anabranch seal v1\0"

Entropy = Callable[[int], bytes]


class GroupKey(msgspec.Struct, frozen=True, gc=False):
    """A secret that everyone who may read a stream shares with one publisher of it."""

    id: bytes
    secret: bytes

    @property
    def fits(self) -> bool:
        """Whether this is the key that has this id."""
        return len(self.secret) == KEY_BYTES and key_id(self.secret) == self.id

    @property
    def removals(self) -> int:
        """How many removals of readers its maker knew of."""
        return int.from_bytes(self.secret[:REMOVALS_BYTES])


def key_id(secret: bytes) -> bytes:
    """Return the id that a secret has, and no other one."""
    return hashlib.sha256(_KEY_ID_DOMAIN + secret).digest()[:KEY_ID_BYTES]


def new_key(entropy: Entropy, removals: int = 0) -> GroupKey:
    """Make a key that nobody else has, and that none of those who were removed has."""
    counted = min(removals, (1 << 8 * REMOVALS_BYTES) - 1).to_bytes(REMOVALS_BYTES)
    secret = counted + entropy(KEY_BYTES - REMOVALS_BYTES)
    return GroupKey(key_id(secret), secret)


def encrypt(key: GroupKey, head: FrameHead, items: bytes, nonce: bytes) -> bytes:
    """Encrypt the items of the frame that this head names."""
    return nonce + AESGCM(key.secret).encrypt(nonce, items, _place(_ITEMS_DOMAIN, head))


def decrypt(secret: bytes, head: FrameHead, encrypted: bytes) -> bytes:
    """Return the items; RemoteError if another key or another frame made them what they are."""
    return _opened(secret, encrypted, _place(_ITEMS_DOMAIN, head))


def wrap(key: GroupKey, following: GroupKey, head: FrameHead, nonce: bytes) -> bytes:
    """Give the key that follows to whoever has this one."""
    context = _place(_WRAP_DOMAIN, head) + key.id + following.id
    return following.id + nonce + AESGCM(key.secret).encrypt(nonce, following.secret, context)


def unwrap(key: GroupKey, next_key: bytes, head: FrameHead) -> GroupKey:
    """Take the key that follows out of the frame that carries it."""
    if len(next_key) != NEXT_KEY_BYTES:
        raise RemoteError("next-key", f"{len(next_key)} bytes")
    following, wrapped = next_key[:KEY_ID_BYTES], next_key[KEY_ID_BYTES:]
    context = _place(_WRAP_DOMAIN, head) + key.id + following
    return GroupKey(following, _opened(key.secret, wrapped, context))


def seal(curve: Curve, entropy: Entropy, public: bytes, secret: bytes, context: bytes) -> bytes:
    """Encrypt to the holder of a public key; it opens only with the same context."""
    fresh = curve.identity(entropy(KEY_BYTES))
    key, nonce = _derive(fresh.agree(public), fresh.public, public, context)
    return fresh.public + AESGCM(key).encrypt(nonce, secret, None)


def unseal(mine: Signer, sealed: bytes, context: bytes) -> bytes:
    """Open what was sealed to us."""
    fresh, encrypted = sealed[:PUBLIC_KEY_BYTES], sealed[PUBLIC_KEY_BYTES:]
    key, nonce = _derive(mine.agree(fresh), fresh, mine.public, context)
    return _opened(key, nonce + encrypted, None)


def _derive(agreed: bytes, fresh: bytes, public: bytes, context: bytes) -> tuple[bytes, bytes]:
    # The public keys are of one size, so no two calls share this encoding.
    info = _SEAL_DOMAIN + fresh + public + context
    made = HKDF(SHA256(), KEY_BYTES + NONCE_BYTES, None, info).derive(agreed)
    return made[:KEY_BYTES], made[KEY_BYTES:]


def _place(domain: bytes, head: FrameHead) -> bytes:
    # All of these are of fixed size, so no two frames share this encoding.
    return domain + head.part + head.chain + head.first.to_bytes(8) + head.last.to_bytes(8)


def _opened(secret: bytes, encrypted: bytes, context: bytes | None) -> bytes:
    if len(secret) != KEY_BYTES:
        raise RemoteError("undecryptable", f"a key of {len(secret)} bytes")
    if len(encrypted) < NONCE_BYTES + TAG_BYTES:
        raise RemoteError("undecryptable", f"{len(encrypted)} bytes")
    nonce, rest = encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:]
    try:
        return AESGCM(secret).decrypt(nonce, rest, context)
    except InvalidTag as error:
        raise RemoteError("undecryptable", "the key or the place is another") from error
