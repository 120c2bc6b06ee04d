"""The key of a message travels before its content, and a bit of the content type tells of it.

    length of the key (2 bytes, big-endian) | key | content

Only who opens a frame looks at it, so nodes that know of no keys carry them all the same.
"""

from anabranch.core.errors import LocalError
from anabranch.core.messages.data import KEYED, MAX_KEY_BYTES

_LENGTH_BYTES = 2


def join_key(content: bytes, content_type: int, key: bytes | None) -> tuple[bytes, int]:
    """Put a key before a content; return both as one, and the type of that."""
    if key is None:
        return content, content_type
    if len(key) > MAX_KEY_BYTES:
        raise LocalError(
            f"a key of {len(key):,} bytes: at most {MAX_KEY_BYTES:,} can be sent; "
            "shorten it, or use its hash"
        )
    assert not content_type & KEYED
    return len(key).to_bytes(_LENGTH_BYTES) + key + content, content_type | KEYED


def split_key(content: bytes, content_type: int) -> tuple[bytes | None, bytes, int]:
    """Return the key, the content and its type without KEYED.

    If the type speaks of a key and there is none, all stays as it is: a type that nobody knows.
    """
    if content_type < KEYED:
        return None, content, content_type
    begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
    if begin > min(len(content), _LENGTH_BYTES + MAX_KEY_BYTES):
        return None, content, content_type
    return content[_LENGTH_BYTES:begin], content[begin:], content_type ^ KEYED
