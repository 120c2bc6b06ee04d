"""Group keys that all processes of one user make alike, for frames whose numbers were given.

Who publishes the same messages under the same numbers once more, in another process and perhaps on
another machine, must sign the same bytes: whoever has the first frame then knows the second for a
copy. So neither the key nor the nonce may be drawn by lot.

    secret of the user   = what its key agrees on with itself
    secret of a group key = removals (4) | first 28 bytes of
                            HMAC-SHA256(secret of the user, domain | removals (4) | changes (8) |
                                        last lapse (8) | day (8) | stream)
    nonce of a frame     = first 12 bytes of
                            HMAC-SHA256(secret of the group key, domain | place | previous (8) |
                                        count (2) | items)

A key is another one after every change of the stream, and whenever somebody's permission to read
it has ended of itself: who may read no more knows none of those that follow. It serves for a day
of numbers. One nonce encrypts one content in one place, so that to do so twice tells nobody more.
"""

import hashlib
import hmac

import msgspec

from anabranch.core.encryption import (
    AES_256_GCM,
    NONCE_BYTES,
    REMOVALS_BYTES,
    GroupKey,
    encrypt,
    new_key,
)
from anabranch.core.identity import Signer
from anabranch.core.ids import SEQUENCE_BITS, FrameHead
from anabranch.core.messages.data import Body

DAY_MS = 86_400_000

_KEY_DOMAIN = b"anabranch standing key v1\0"
_NONCE_DOMAIN = b"anabranch standing nonce v1\0"


class StandingLock(msgspec.Struct, frozen=True):
    """Encrypts a frame, always to the same bytes."""

    key: GroupKey

    def __call__(self, head: FrameHead, items: bytes) -> Body:
        """Make the body of a frame's items."""
        place = head.part + head.chain + head.first.to_bytes(8) + head.last.to_bytes(8)
        said = place + head.previous.to_bytes(8) + head.count.to_bytes(2) + items
        nonce = _keyed(self.key.secret, _NONCE_DOMAIN + said)[:NONCE_BYTES]
        return Body(encrypt(self.key, head, items, nonce), AES_256_GCM, self.key.id)


class StandingKeys:
    """Makes the keys of one user."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._secret = b""

    def make(self, stream: str, removals: int, changes: int, lapse_ms: int, first: int) -> GroupKey:
        """Make the key of a stream as it is now, for a frame that begins with this number."""
        if not self._secret:
            self._secret = self._signer.agree(self._signer.public)
        day = (first >> SEQUENCE_BITS) // DAY_MS
        counted = removals.to_bytes(REMOVALS_BYTES) + changes.to_bytes(8)
        said = counted + lapse_ms.to_bytes(8) + day.to_bytes(8) + stream.encode()
        random = _keyed(self._secret, _KEY_DOMAIN + said)
        return new_key(lambda size: random[:size], removals)


def _keyed(secret: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, said, hashlib.sha256)
