"""Messages as users meet them: contents in and out, and the name of each message."""

from functools import lru_cache
from typing import Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import MAX_SEQUENCE, NODE_ID_BYTES, SEQUENCE_BITS, ChainKey, FrameHead
from anabranch.core.machine import Missed
from anabranch.core.messages.data import CONTENT_BYTES, CONTENT_JSON, CONTENT_TEXT, KEYED

_NAMES = {CONTENT_BYTES: "bytes", CONTENT_JSON: "json", CONTENT_TEXT: "text"}

_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode


class MessageId(msgspec.Struct, frozen=True, order=True):
    """The name of a message: nobody else's message has it."""

    stream: str
    partition: int
    timestamp_ms: int
    sequence: int
    publisher: str
    chain: str

    def __str__(self) -> str:
        return (
            f"{self.stream}#{self.partition}/{self.timestamp_ms}.{self.sequence}"
            f"@{self.publisher}.{self.chain}"
        )


class Gap(msgspec.Struct, frozen=True):
    """A place in a publisher's chain where messages did not come, and could not be had."""

    publisher: str
    chain: str
    after_ms: int  # they were published from here on (0: from the beginning),
    before_ms: int  # up to here
    reason: str


# Python does not search it for cycles: nothing in it leads back to it.
class Message(msgspec.Struct, frozen=True, gc=False):
    """A message that came, with what is known of its way."""

    content: Any  # dict, list, str, bytes...: what was published
    stream: str
    partition: int
    publisher: str
    chain: str
    number: int
    content_type: str  # json, text or bytes
    hops: int  # links it crossed; 0 for our own
    received_ms: float
    missed: int = 0  # messages dropped just before this one, because nobody read them in time
    problem: str = ""  # why the content is bytes although its publisher called it something else
    gaps: tuple[Gap, ...] = ()  # what is missing just before this one
    key: bytes | None = None  # that it was published with; text is UTF-8
    late: bool = False  # of the past: the log has a newer message of its chain before it

    @property
    def gap(self) -> Gap | None:
        """The first of the gaps before it, if there is one."""
        return self.gaps[0] if self.gaps else None

    @property
    def timestamp_ms(self) -> int:
        """When it was published, by its publisher's clock."""
        return self.number >> SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        """Its place among the messages its publisher made in that millisecond."""
        return self.number & MAX_SEQUENCE

    @property
    def delay_ms(self) -> float:
        """How long it was under way, as far as the two clocks agree."""
        return self.received_ms - self.timestamp_ms

    @property
    def id(self) -> MessageId:
        """Its name."""
        return message_id(self.stream, self.partition, self.publisher, self.chain, self.number)


def message_id(stream: str, partition: int, publisher: str, chain: str, number: int) -> MessageId:
    """Name a message by its number."""
    timestamp_ms, sequence = number >> SEQUENCE_BITS, number & MAX_SEQUENCE
    return MessageId(stream, partition, timestamp_ms, sequence, publisher, chain)


@lru_cache(4_096)
def names_of_chain(chain: ChainKey) -> tuple[str, str]:
    """Return a chain's publisher and id as text."""
    return "0x" + chain[:NODE_ID_BYTES].hex(), chain[NODE_ID_BYTES:].hex()


def gap_of(missed: Missed) -> Gap:
    """Name a gap as people do."""
    publisher, chain = names_of_chain(missed.chain)
    after_ms, before_ms = missed.after >> SEQUENCE_BITS, missed.before >> SEQUENCE_BITS
    return Gap(publisher, chain, after_ms, before_ms, missed.reason)


def names_of(head: FrameHead) -> tuple[str, str]:
    """Return the publisher and the chain of a frame as text."""
    return names_of_chain(head.chain)


def encode_content(content: Any) -> tuple[bytes, int]:
    """Turn what a user publishes into bytes and their type."""
    if type(content) is bytes:
        return content, CONTENT_BYTES
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content), CONTENT_BYTES
    try:
        if isinstance(content, str):
            return content.encode(), CONTENT_TEXT
        return _encode_json(content), CONTENT_JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalError(
            f"this {type(content).__name__} cannot be sent as JSON or text ({error}): "
            "publish a dict, a list, text or bytes"
        ) from error


def encode_key(key: str | bytes | None) -> bytes | None:
    """Turn the key that a user gives a message into bytes."""
    if key is None or isinstance(key, bytes):
        return key
    try:
        return key.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise LocalError(f"{key!r:.100} is no key ({error}): give text or bytes") from error


def decode_content(content: bytes, content_type: int) -> tuple[Any, str, str]:
    """Turn bytes back into what was published: content, its type, and what is wrong with it."""
    name = _NAMES.get(content_type, "bytes")
    try:
        if content_type == CONTENT_JSON:
            return _decode_json(content), name, ""
        if content_type == CONTENT_TEXT:
            return content.decode(), name, ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return content, "bytes", f"not {name}: {error}"
    if content_type == CONTENT_BYTES:
        return content, "bytes", ""
    if content_type & KEYED:
        return content, "bytes", f"no key where content type {content_type} promises one"
    return content, "bytes", f"unknown content type {content_type}"
