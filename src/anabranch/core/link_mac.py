"""Authenticates the messages of one link, so that no one on its path can forge or alter them.

After each message stands its tag (16 bytes): AES-256-GCM without plaintext, with the message as
associated data. The nonce is the position of the message in its direction, from 0; it is not
sent. So a message that was altered, repeated, moved or returned to its sender does not verify, and
neither does the first message after one that was dropped. Each direction has a key of its own.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from anabranch.core.encryption import NONCE_BYTES, TAG_BYTES
from anabranch.core.errors import RemoteError

MAC_BYTES = TAG_BYTES


class LinkMac:
    """The two keys of a link and the number of messages so far in each direction."""

    # Every message passes here: methods of the ciphers are looked up once.
    __slots__ = ("_receive", "_received", "_send", "_sent")

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send = AESGCM(send_key).encrypt
        self._receive = AESGCM(receive_key).decrypt
        self._sent = 0
        self._received = 0

    def tag(self, message: bytes | memoryview) -> bytes:
        """Return the tag of the next message that is sent."""
        position = self._sent
        self._sent = position + 1
        return self._send(position.to_bytes(NONCE_BYTES), b"", message)

    def check(self, message: bytes, tag: bytes | memoryview) -> None:
        """Raise RemoteError unless this is the tag of the next message that is received."""
        position = self._received
        self._received = position + 1
        try:
            self._receive(position.to_bytes(NONCE_BYTES), tag, message)
        except InvalidTag as error:
            raise RemoteError("bad-mac", f"message {position} of the link") from error
