"""Writes the generated pages and pictures of docs/: `make docs`.

The wire page is read off the message types, so it cannot say anything else than they do. The table
of attacks in security.md is that of tests/mutants/security.py: each row is an entry with a mutant.
"""

import random
import sys
from pathlib import Path
from typing import Any

from msgspec import inspect

from anabranch.core import codec, frames
from anabranch.core.changes import Action, Change, Genesis, TrackerEntry
from anabranch.core.handshake import Hello, Proof, Ready, Welcome
from anabranch.core.ids import StreamPart, show
from anabranch.core.key_records import KeyQuestion, KeyReply
from anabranch.core.messages import ChainHead, Contact, Control
from anabranch.core.messages.data import (
    CONTENT_BYTES,
    CONTENT_JSON,
    CONTENT_TEXT,
    KEYED,
    MAX_KEY_BYTES,
    Body,
    Item,
)
from anabranch.core.messages.storage import Entry, Holding
from anabranch.live.transports.batches import COVERED_BYTES, MAX_MESSAGE_BYTES
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Plane
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.traces import schema
from anabranch.traces.recorder import Recorder

DOCS = Path(__file__).parent

ATTACKS = "| who | tries | and what comes of it | test |\n|---|---|---|---|\n"

INTRO = f"""# The wire protocol

Generated from the message types by `make docs`; do not edit.

Version {codec.PROTOCOL_VERSION}. A link carries packets. The first byte of a packet is the
version, the second its kind. A packet of another version, or one that breaks a limit below,
costs its sender the link.

| packet | bytes | at most |
|---|---|---|
| control | version, 0, a msgpack array that begins with a tag | {codec.MAX_CONTROL_BYTES:,} bytes |
| data | version, 1, overlay, length of the route, route, frame | {codec.MAX_DATA_BYTES:,} bytes |
| bulk | version, 2, a msgpack array: Resent, Hand or Fetched | {codec.MAX_BULK_BYTES:,} bytes |

## Links

A link is a WebSocket (`ws://` or `wss://`). A binary message holds one or more packets, each after
its length in four bytes, big-endian, and ends with a tag; it has at most {MAX_MESSAGE_BYTES:,}
bytes. Text messages and fragments cost the link.

Before any packet both ends prove their keys, in four messages of the form version, msgpack array:
the dialler's Hello, the acceptor's Welcome, the dialler's Proof, the acceptor's Ready. A signature
covers SHA-256 of the domain tag "anabranch link v2", the signer's role ("dialler" or "acceptor"),
the network's name, both nodes, both nonces and both ephemeral keys, each with its length before it
in two bytes; of nodes, nonces and keys the dialler's comes first. The network's name is the hash of
its genesis record.

The ephemeral keys are X25519 keys, made for one link. Each side agrees on the common secret once
the proof of the other holds; a secret of zeros is refused. HKDF with SHA-256 makes 64 bytes of it:
the salt is the same digest with the role "keys", the info is the domain tag. The first 32 bytes are
the key for messages of the dialler, the others the key for messages of the acceptor.

A tag is what AES-256-GCM makes of an empty plaintext with the sender's key: 16 bytes. The nonce is
the number of messages with a tag that the sender has sent before, in 12 bytes; it is not sent. The
associated data are the bytes of the message before the tag, without those of each data packet after
its first {COVERED_BYTES:,}: the frame's signature covers them. The acceptor's first message with a
tag is its Ready. A message with a wrong tag ends the link, with the reason `bad-mac`.

A message that begins with four zero bytes is an echo: then follow 0 for a request or 1 for an
answer, 8 bytes, which an answer repeats, and the tag. Echoes measure the round trip and show that
the other side lives. Pings of the WebSocket are answered, but they have no tag and show nothing.

## Frames

A frame is one signed batch of one or more consecutive messages of one publisher chain. It is
forwarded byte for byte. All integers are big-endian.

| field | bytes | meaning |
|---|---|---|
| version | 1 | {frames.FRAME_VERSION} |
| part | 16 | SHA-256 of the stream's name and partition, cut off |
| publisher | 20 | address: the last 20 bytes of Keccak-256 of the public key |
| chain | 8 | drawn at random by the publisher at every start, per part |
| previous | 8 | number of the chain's message before the frame; 0: the chain begins here |
| first, last | 8 + 8 | numbers of the first and the last message |
| count | 2 | messages, 1 to 256 |
| length | 4 | of the body |
| body | length | see below |
| signature | 64 | secp256k1, (r, s) with low s, of SHA-256("anabranch frame v1\\0", all before) |

A number is (timestamp in ms << 20) | sequence. The signature carries no recovery id: the key of
a publisher seen for the first time is recovered by trying both.
"""

CONTENTS = f"""
A content type is {CONTENT_BYTES} for bytes, {CONTENT_JSON} for JSON and {CONTENT_TEXT} for text.
With {KEYED} added the message has a key: `content` is then the length of the key (2 bytes), the key
(up to {MAX_KEY_BYTES:,} bytes) and what was published. Only who reads a message looks at it. A type
that a reader does not know, or one that promises a key where there is none, leaves bytes.
"""

REGISTRY = """
## The registry

The changes of a stream form a chain; the network has one of its own, which begins with the genesis
record. A change is a msgpack array and a signature of 64 bytes, over a domain tag, the network's
name, the array's length and the array. It names the hashes of the newest changes that its author
knew: one, unless two trackers wrote at the same time; the first of a stream names the network. Its
depth is one more than that of the deepest change it names. The order of a chain goes by depth and
then by hash; its head is SHA-256 of a domain tag, the head before and the hash of the change,
rolled along that order.
"""

KEYS = """
## Private streams

The items of a frame are encrypted if its body says `encryption` 1: AES-256-GCM, with a nonce of 12
random bytes before the ciphertext, and the part, the chain and the numbers of the frame
authenticated beside it. `next_key`, if there is one, is the id of the next key (16 bytes), a nonce
(12) and the next secret, encrypted with this frame's key (48).

A subscriber's request for keys, and the publisher's answer, travel inside KeyRequest and KeyAnswer:
a msgpack array and a signature of 64 bytes. The keys are sealed to the public key of who asks: a
fresh key pair's public key (33 bytes), and what AES-256-GCM makes of the keys with the secret that
the two public keys agree on, through HKDF with SHA-256.

A key's secret is 32 bytes, of which the first four say how many removals of readers its publisher
knew of when it was made. Its id is the first 16 bytes of SHA-256 of a domain tag and the secret:
who learns a key checks that it fits its id. So any reader who has the key may answer for a
publisher that is gone; `by` says who does, and he signs.

## Receipts

What a storage node signs in Acknowledged is SHA-256 of a domain tag, the network, the stream, the
partition, and of each frame its chain, the number of its last message, its offset and the SHA-256
of all of it; everything of varying length has its length before it.
"""


def limits(kind: inspect.Type) -> str:
    """Say in words what a type admits."""
    if isinstance(kind, inspect.StructType):
        return kind.cls.__name__
    if isinstance(kind, inspect.NoneType):
        return "nil"
    if isinstance(kind, inspect.UnionType):
        return " or ".join(limits(each) for each in kind.types)
    if isinstance(kind, inspect.VarTupleType):
        return f"up to {kind.max_length or 'any number'} of: {limits(kind.item_type)}"
    name = type(kind).__name__.removesuffix("Type").lower()
    words = []
    if isinstance(kind, inspect.IntType) and (kind.ge is not None or kind.le is not None):
        low = kind.ge if kind.ge is not None else 0
        high = kind.le if kind.le is not None else (kind.lt or 0) - 1
        words.append(f"{low} to {high:,}" if high < 2**62 else f"{low} to 2^63 - 1")
    if isinstance(kind, inspect.StrType | inspect.BytesType) and kind.max_length is not None:
        same = kind.min_length == kind.max_length
        words.append(f"{kind.max_length:,} bytes" if same else f"up to {kind.max_length:,}")
    return ", ".join([name, *words])


def message_table(kind: type[Any]) -> str:
    """Describe one message."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    tag = f", tag {described.tag}" if described.tag is not None else ""
    text = f"\n### {kind.__name__}{tag}\n\n{(kind.__doc__ or '').strip()}\n\n"
    text = "\n".join(line.strip() for line in text.splitlines()) + "\n"
    rows = [f"| {f.name} | {limits(f.type)} |" for f in described.fields]
    return text + "\n".join(["| field | limits |", "|---|---|", *rows]) + "\n"


def wire_page() -> str:
    """Write the whole page."""
    page = INTRO + "\nA body is a msgpack array; `items` holds another, of Items.\n"
    page += "".join(message_table(kind) for kind in (Body, Item)) + CONTENTS
    page += "\n## Opening a link\n"
    page += "".join(message_table(kind) for kind in (Hello, Welcome, Proof, Ready))
    page += "\n## Control messages\n"
    page += "".join(
        message_table(kind)
        for kind in (*Control.__args__, Contact, ChainHead, StreamPart, Entry, Holding)
    )
    page += REGISTRY
    kinds = (Genesis, Change, *Action.__args__, TrackerEntry)
    page += "".join(message_table(kind) for kind in kinds) + KEYS
    return page + "".join(message_table(kind) for kind in (KeyQuestion, KeyReply))


def security_page(page: str) -> str:
    """Write the table of attacks anew, and leave the rest of the page as it is."""
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from mutants import table

    at = page.index(ATTACKS) + len(ATTACKS)
    rows, before = "", ""
    for mutant in table.ATTACKS:
        row = mutant.row
        assert row is not None
        who = f"**{row.who}**" if row.who != before else ""
        test = mutant.tests[0].partition("[")[0]
        rows += f"| {who} | {row.tries} | {row.outcome} | `{test}` |\n"
        before = row.who
    return page[:at] + rows + page[page.index("\n\n", at - 1) + 1 :]


def picture(path: Path) -> None:
    """Draw one message's flood through a city's overlay."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "anabranch"
    import matplotlib.pyplot as plt

    plane = Plane(61, 1.0, 12.0, random.Random(5))
    records: list[schema.Record] = []
    sim = Simulator(plane, 5, Recorder(records.append))
    cluster = Cluster(sim, 5, nodes=60)
    part = cluster.parts[0]
    for node in cluster.peers:
        cluster.subscribe(node, part)
    sim.run(START_AT + 15)
    cluster.publish(cluster.peers[0], part, [b"x"])
    sim.run(sim.now + 1)
    at = {show(node.id): plane.place(node.place) for node in cluster.peers}
    figure, axes = plt.subplots(figsize=(8, 4.6))

    def line(a: str, b: str, color: str, width: float) -> None:
        (ax, ay), (bx, by) = at[a], at[b]
        axes.plot([ax, bx], [ay, by], color=color, lw=width, zorder=1)

    for node in cluster.peers:
        for peer in cluster.neighbours(node, part):
            if node.id < peer:
                line(show(node.id), show(peer), "#ccd5dd", 0.6)
    for record in records:
        if isinstance(record, schema.Received):
            line(record.peer, record.node, "#4f7f86", 1.3)
    delay_ms = {r.node: r.delay_ms for r in records if isinstance(r, schema.Delivered)}
    xs, ys = zip(*at.values(), strict=True)
    delays = [delay_ms[node] for node in at]
    dots = axes.scatter(xs, ys, c=delays, s=60, cmap="viridis_r", zorder=2, edgecolors="white")
    axes.scatter(xs[:1], ys[:1], s=190, facecolors="none", edgecolors="#d1495b", lw=2, zorder=3)
    axes.annotate(
        "publisher",
        (xs[0], ys[0]),
        (9, 9),
        textcoords="offset points",
        color="#d1495b",
        fontsize=11,
        fontweight="bold",
    )
    figure.colorbar(dots, label="first copy after (ms)")
    axes.set_axis_off()
    axes.set_title(
        "One message through 60 nodes of a city; dark: the links that brought a first copy",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def main() -> None:
    """Write everything."""
    (DOCS / "wire-protocol.md").write_text(wire_page())
    security = DOCS / "security.md"
    security.write_text(security_page(security.read_text()))
    picture(DOCS / "pictures" / "flood.svg")
    print("docs: wrote wire-protocol.md, the table of security.md, and pictures/flood.svg")


if __name__ == "__main__":
    main()
