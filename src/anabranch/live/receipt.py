"""What a publisher has in hand when storage nodes hold its message."""

import msgspec

from anabranch.core.ids import NodeId, show
from anabranch.core.machine import Receipt as Words
from anabranch.core.messages import Acknowledged
from anabranch.core.messages.storage import Holding
from anabranch.live.message import MessageId


class Receipt(msgspec.Struct, frozen=True):
    """Storage nodes' signed words that they hold a message, with the offset it will always have.

    `words` are as they came, one for each node: anybody who has the network's name can check them
    (`anabranch.core.receipts.check_receipt`).
    """

    id: MessageId
    offset: int  # of the first message of the frame that it left in
    nodes: tuple[str, ...]
    words: tuple[tuple[NodeId, Acknowledged], ...]


def receipt_of(name: MessageId, receipt: Words) -> Receipt:
    """Make a receipt of what storage nodes have said of a message."""
    nodes = tuple(show(node) for node, _ in receipt.words)
    number = name.timestamp_ms << 20 | name.sequence
    return Receipt(name, _holding(receipt, number).offset, nodes, receipt.words)


def _holding(receipt: Words, number: int) -> Holding:
    """Return what was said of the frame that a message is in."""
    _, word = receipt.words[0]
    held = [each for each in word.holdings if each.name.last >= number]
    return min(held, key=lambda each: each.name.last)
