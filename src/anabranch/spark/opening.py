"""Frames as they were signed, into messages: checked, decrypted, and made columns of.

This is what a storage node does itself for content in the clear. Where it cannot, because only the
reader has the keys, or need not be trusted to have done it, executors do it.
"""

import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anabranch.core.encryption import AES_256_GCM, GroupKey, decrypt, unwrap
from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD, SIGNATURE_BYTES, digest, peek, signature
from anabranch.core.identity import KnownKeys
from anabranch.core.ids import FrameHead, NodeId, StreamPart, part_key, show
from anabranch.core.messages.data import Body
from anabranch.core.messages.storage import LATE, Entry
from anabranch.core.store import Placed
from anabranch.live.errors import AnabranchError, HistoryLost
from anabranch.live.key_store import KeyStore
from anabranch.live.storage.columns import Columns, EncryptedError, HoleError, Wanted
from anabranch.spark.access import Access, StoredStream, identity_of, open_network, wait_for

if TYPE_CHECKING:
    import pyarrow

MAX_GIVEN = 64  # streams whose keys a worker's process remembers

KeyName = tuple[NodeId, bytes]  # the publisher, and the key's id
Secrets = dict[KeyName, bytes]

_NO_SIGNATURE = bytes(SIGNATURE_BYTES)

_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Body).decode
_KNOWN = KnownKeys()  # publishers' keys, recovered once in a worker's process


class FalseFrameError(AnabranchError):
    """What a storage node sent as a frame of the log is none: another may have the true one."""


class Opener:
    """Opens the frames of one range, as they come from one storage node."""

    def __init__(self, wanted: Wanted, ring: "KeyRing", verify: bool) -> None:
        self._part = part_key(wanted.part)
        self._name = wanted.part
        self._whose = wanted.whose
        self._columns = Columns(wanted)
        self._ring = ring
        self._verify = verify

    @property
    def position(self) -> int:
        """Everything before this offset has come."""
        return self._columns.position

    def end(self) -> None:
        """Refuse to take for the end what lacks frames there."""
        try:
            self._columns.end()
        except HoleError as error:
            raise FalseFrameError(f"{self._name}: {error} at a storage node") from error

    def open(self, batch: "pyarrow.RecordBatch") -> list["pyarrow.RecordBatch"]:
        """Return the messages of the next frames."""
        names = ("offset", "frame", "late")
        offsets, found, late = (batch.column(name).to_pylist() for name in names)
        if self._verify:
            for offset, frame in zip(offsets, found, strict=True):
                self._check(offset, frame)
        try:
            try:
                return self._columns.add(_placed(offsets, found, late))
            except EncryptedError:
                opened = [self._unlock(*row) for row in zip(offsets, found, strict=True)]
                return self._columns.add(_placed(offsets, opened, late))
        except (HoleError, struct.error) as error:
            raise FalseFrameError(f"{self._name}: {error} at a storage node") from error

    def _check(self, offset: int, frame: bytes) -> FrameHead:
        """Refuse a frame that is not of this part, or that its publisher did not sign."""
        try:
            head = peek(frame)
        except RemoteError as error:
            raise FalseFrameError(f"{self._name}@{offset} is no frame: {error}") from error
        if head.part != self._part:
            raise FalseFrameError(f"{self._name}@{offset} is a frame of something else")
        if not head.chain.startswith(self._whose):  # nobody looks at that again
            raise FalseFrameError(f"{self._name}@{offset} is of another publisher than was asked")
        if not _KNOWN.verify(head.publisher, digest(frame), signature(frame)):
            raise FalseFrameError(f"{self._name}@{offset} was not signed by {show(head.publisher)}")
        return head

    def _unlock(self, offset: int, frame: bytes) -> bytes:
        """Return the same frame in the clear, without its signature, which is not looked at."""
        try:
            body = _decode_body(memoryview(frame)[HEAD.size : -SIGNATURE_BYTES])
            if not body.encryption:
                return frame
            head = peek(frame)
            if body.encryption != AES_256_GCM:
                raise RemoteError("encrypted", f"with method {body.encryption}")
            secret = self._ring.find(head.publisher, body.key_id, self._name, offset)
            items = decrypt(secret, head, body.items)
            self._ring.learn(head, GroupKey(body.key_id, secret), body.next_key)
        except (msgspec.DecodeError, RecursionError, RemoteError):
            # If its publisher made it so nobody can open it; else another has the true frame.
            self._check(offset, frame)
            items = b""
        return frame[: HEAD.size] + _encode((items, 0, b"")) + _NO_SIGNATURE


def _placed(offsets: Sequence[int], found: Sequence[bytes], late: Sequence[bool]) -> list[Placed]:
    return [
        Placed(offset, Entry(0, 0, frame, LATE if is_late else 0))
        for offset, frame, is_late in zip(offsets, found, late, strict=True)
    ]


class KeyRing:
    """The group keys of one stream that the reader has, or can still get."""

    def __init__(self, access: Access, stored: StoredStream) -> None:
        self._access = access
        self._stored = stored
        self._secrets: Secrets | None = None

    def find(self, publisher: NodeId, key_id: bytes, part: StreamPart, offset: int) -> bytes:
        """Return the secret of a key: from the key store, or else from whoever gives it."""
        if self._secrets is None:
            self._secrets = self._kept() | _given(self._access, self._stored.name)
        name = (publisher, key_id)
        if name not in self._secrets:
            secret, problem = self._ask(name, part, offset)
            if secret is None:
                raise HistoryLost(
                    f"{part}@{offset} cannot be decrypted: nobody gave {show(self._me)} the key "
                    f"of its publisher {show(publisher)}{problem}; start that publisher, or a "
                    "reader who has the key, or read once with a client that has the same keyStore"
                )
            _given(self._access, self._stored.name)[name] = secret
            self._secrets |= self._kept() | {name: secret}
        return self._secrets[name]

    def learn(self, head: FrameHead, key: GroupKey, next_key: bytes) -> None:
        """Take the key that follows out of the frame that carries it."""
        if not next_key or self._secrets is None:
            return
        with suppress(RemoteError):  # it is then asked for when it is needed
            following = unwrap(key, next_key, head)
            if following.fits:
                self._secrets.setdefault((head.publisher, following.id), following.secret)

    @property
    def _me(self) -> NodeId:
        return identity_of(self._access).node

    def _kept(self) -> Secrets:
        """Return what the key store has."""
        path, identity = Path(self._access.key_store), identity_of(self._access)
        store = KeyStore(path, self._stored.network, identity)
        try:
            kept = [key for key in store.load() if key.stream == self._stored.name]
        finally:
            store.close()
        return {(key.publisher, key.key_id): key.secret for key in kept}

    def _ask(self, name: KeyName, part: StreamPart, offset: int) -> tuple[bytes | None, str]:
        """Let a client read one message, for which it asks for the key; or return what it said.

        It keeps the key in the key store, unless that is of a publisher who has our own name.
        """

        async def read() -> bytes | None:
            async with open_network(self._access) as network:
                stream = await network.stream(part.stream)
                wanted = (offset, offset + 1)
                async with stream.history(offsets=wanted, partitions=part.partition) as messages:
                    async for _ in messages:
                        pass
                return network.node.peer.secret(stream.id, *name)

        try:
            return wait_for(read), ""
        except HistoryLost:
            return None, ""  # it says no more than that there is no key
        except AnabranchError as error:
            return None, f" ({error})"


@lru_cache(MAX_GIVEN)
def _given(access: Access, stream: str) -> Secrets:
    """Return the keys of a stream that this process was given; the next task needs them too."""
    return {}
