"""What a publisher has in hand when storage nodes hold its message."""

import msgspec

from anabranch.core.ids import NodeId, number_of, show
from anabranch.core.machine import Receipt as Words
from anabranch.core.messages import Acknowledged
from anabranch.live.message import MessageId


class Receipt(msgspec.Struct, frozen=True):
    """Storage nodes' signed words that they hold a message, with the offset it will always have.

    `words` are as they came, one for each node: anybody who has the network's name can check them
    (`anabranch.core.receipts.check_receipt`).
    """

    id: MessageId
    offset: int
    nodes: tuple[str, ...]
    words: tuple[tuple[NodeId, Acknowledged], ...]
    late: bool = False  # the log has a newer message of its chain before it


def receipt_of(name: MessageId, receipt: Words) -> Receipt:
    """Make a receipt of what storage nodes have said of a message."""
    nodes = tuple(show(node) for node, _ in receipt.words)
    # The numbers of a frame that we have made follow one another.
    ahead = number_of(name.timestamp_ms, name.sequence) - receipt.first
    return Receipt(name, receipt.offset + ahead, nodes, receipt.words, receipt.late)
