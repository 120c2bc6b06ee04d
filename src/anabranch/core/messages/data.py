"""What a frame holds once it is opened: messages of one chain, one after the other."""

from typing import Annotated

import msgspec

MAX_CONTENT_BYTES = 512 * 1024
MAX_FRAME_BODY_BYTES = 640 * 1024
MAX_FRAME_MESSAGES = 256
MAX_KEY_ID_BYTES = 32
MAX_NEXT_KEY_BYTES = 128
MAX_KEY_BYTES = 1_024  # of a message's own key

CONTENT_BYTES = 0
CONTENT_JSON = 1
CONTENT_TEXT = 2
KEYED = 0x80  # added to one of these: the content begins with the message's key


class Item(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One message: `ahead` is its number minus the number of the frame's first message."""

    ahead: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    content_type: Annotated[int, msgspec.Meta(ge=0, le=255)]
    content: Annotated[bytes, msgspec.Meta(max_length=MAX_CONTENT_BYTES)]


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A frame's body. Who only carries the frame never looks inside; encryption covers `items`.

    `next_key` is the key of later frames, wrapped with this frame's; a body without it is shorter.
    """

    items: Annotated[bytes, msgspec.Meta(max_length=MAX_FRAME_BODY_BYTES)]
    encryption: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    key_id: Annotated[bytes, msgspec.Meta(max_length=MAX_KEY_ID_BYTES)] = b""
    next_key: Annotated[bytes, msgspec.Meta(max_length=MAX_NEXT_KEY_BYTES)] = b""


Items = Annotated[tuple[Item, ...], msgspec.Meta(min_length=1, max_length=MAX_FRAME_MESSAGES)]
