"""Every message on the wire, once: the whole protocol is this union and the frame of data.

A message is a msgpack array that opens with its tag. Tags are never used again for another
meaning: 1 to 15 between neighbours, 16 to 31 between nodes and trackers, 32 to 47 about the
registry.
"""

from anabranch.core.messages.links import Bye, Got, Meet, SlowDown
from anabranch.core.messages.registry import (
    ChainChanged,
    ChainList,
    ChainPage,
    ListChains,
    ReadChain,
    WriteChange,
    Written,
)
from anabranch.core.messages.tracker import Contact, Instruction, Leave, Report, Status

AboutParts = Meet | Bye | SlowDown | Got | Status | Instruction | Leave | Report
AboutRegistry = (
    ReadChain | ChainPage | WriteChange | Written | ListChains | ChainList | ChainChanged
)
Control = AboutParts | AboutRegistry

__all__ = [
    "AboutParts",
    "AboutRegistry",
    "Bye",
    "ChainChanged",
    "ChainList",
    "ChainPage",
    "Contact",
    "Control",
    "Got",
    "Instruction",
    "Leave",
    "ListChains",
    "Meet",
    "ReadChain",
    "Report",
    "SlowDown",
    "Status",
    "WriteChange",
    "Written",
]
