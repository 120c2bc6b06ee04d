"""Anabranch: decentralised publish-subscribe for real-time data."""

from anabranch.core.errors import LocalError
from anabranch.live.client import Network, connect
from anabranch.live.errors import (
    AnabranchError,
    Closed,
    HistoryLost,
    NetworkUnreachable,
    NoSuchStream,
    NotPermitted,
    NotPublished,
    NotStored,
    StreamExists,
    TooLarge,
)
from anabranch.live.memory_network import MemoryNetwork
from anabranch.live.message import Gap, Message, MessageId
from anabranch.live.receipt import Receipt
from anabranch.live.stream import Stream
from anabranch.live.subscription import Subscription
from anabranch.live.telemetry import Telemetry

__all__ = [
    "AnabranchError",
    "Closed",
    "Gap",
    "HistoryLost",
    "LocalError",
    "MemoryNetwork",
    "Message",
    "MessageId",
    "Network",
    "NetworkUnreachable",
    "NoSuchStream",
    "NotPermitted",
    "NotPublished",
    "NotStored",
    "Receipt",
    "Stream",
    "StreamExists",
    "Subscription",
    "Telemetry",
    "TooLarge",
    "connect",
]
