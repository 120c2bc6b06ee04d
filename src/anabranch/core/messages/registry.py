"""What nodes and the keepers of the registry say to each other: chains of signed changes.

A chain is named by its stream, or is the network's own (`NETWORK`). A ticket ties an answer to
its question. What stands in a change is in core/changes.py; here it is only bytes.
"""

from typing import Annotated

import msgspec

NETWORK = "network"
HASH_BYTES = 32
MAX_CHAIN_NAME = 256
MAX_CHANGE_BYTES = 16 * 1024
MAX_PAGE_CHANGES = 64
MAX_PAGE_BYTES = 64 * 1024
MAX_LISTED = 100
MAX_PROBLEM = 255
NO_HASH = bytes(HASH_BYTES)

Ticket = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Height = Annotated[int, msgspec.Meta(ge=0, le=(1 << 40))]
Chain = Annotated[str, msgspec.Meta(max_length=MAX_CHAIN_NAME)]
Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
Encoded = Annotated[bytes, msgspec.Meta(max_length=MAX_CHANGE_BYTES)]
Changes = Annotated[tuple[Encoded, ...], msgspec.Meta(max_length=MAX_PAGE_CHANGES)]
Problem = Annotated[str, msgspec.Meta(max_length=MAX_PROBLEM)]


class ReadChain(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=32):
    """Tell me the changes of a chain after the first `after`, and then whenever it changes.

    `head` is the head that these first changes leave. Where it is another with whoever answers,
    the answer begins with the first change of all.
    """

    ticket: Ticket
    chain: Chain
    after: Height = 0
    head: Annotated[bytes, msgspec.Meta(max_length=HASH_BYTES)] = b""


class ChainPage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=33):
    """Some changes of a chain that has `height` of them in all; the first follows `after`.

    `head` is the hash of the last of all, so that two who hold as many changes see whether they
    hold the same. `changes` are msgpack of `Changes`, so that one limit stands on their sum.
    """

    ticket: Ticket
    chain: Chain
    after: Height
    height: Height
    head: Hash
    changes: Annotated[bytes, msgspec.Meta(max_length=MAX_PAGE_BYTES)] = b"\x90"


class WriteChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=34):
    """Add a signed change to its chain."""

    ticket: Ticket
    change: Encoded


class Written(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=35):
    """The change is on the disk as the `height`th of its chain; or the problem."""

    ticket: Ticket
    height: Height = 0
    problem: Problem = ""


class ListChains(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=36):
    """Name the streams whose names begin with `prefix` and come after `after`."""

    ticket: Ticket
    prefix: Chain = ""
    after: Chain = ""


class ChainList(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=37):
    """Some names, sorted; `more` says that others follow."""

    ticket: Ticket
    chains: Annotated[tuple[Chain, ...], msgspec.Meta(max_length=MAX_LISTED)] = ()
    more: bool = False


class ChainChanged(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=38
):
    """To everyone who read a chain: it has `height` changes now, which leave this head."""

    chain: Chain
    height: Height
    head: Hash = NO_HASH


class ListHeads(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=39):
    """One tracker to another: name all chains after `after`, with their heads.

    `digest` is that of all heads the asker has: who has the same digest says just that.
    """

    ticket: Ticket
    after: Chain = ""
    digest: Hash = NO_HASH


class ChainHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a chain goes with who says so."""

    chain: Chain
    height: Height
    head: Hash


class HeadList(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=40):
    """Some chains, sorted; `more` says that others follow, `same` that all are as the asker's."""

    ticket: Ticket
    heads: Annotated[tuple[ChainHead, ...], msgspec.Meta(max_length=MAX_LISTED)] = ()
    more: bool = False
    same: bool = False
