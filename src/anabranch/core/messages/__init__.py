"""Every message on the wire, once: the whole protocol is this union and the frame of data.

A message is a msgpack array that opens with its tag. Tags are never used again for another
meaning: 1 to 15 between neighbours, 16 to 31 between nodes and trackers, 32 to 47 about the
registry, 48 to 63 about storage.
"""

from anabranch.core.messages.links import (
    Bye,
    Got,
    Introduce,
    KeyAnswer,
    KeyRequest,
    Meet,
    SlowDown,
)
from anabranch.core.messages.registry import (
    ChainChanged,
    ChainHead,
    ChainList,
    ChainPage,
    HeadList,
    ListChains,
    ListHeads,
    ReadChain,
    WriteChange,
    Written,
)
from anabranch.core.messages.storage import (
    Acknowledged,
    AskStored,
    Fetch,
    Fetched,
    Hand,
    Lead,
    Resend,
    Resent,
    Vote,
    Voted,
)
from anabranch.core.messages.tracker import (
    Contact,
    Instruction,
    Leave,
    Listening,
    Probe,
    Probed,
    Refused,
    Report,
    Seen,
    Status,
)

AboutTrackers = Status | Instruction | Leave | Report | Refused | Probe | Probed
AboutParts = Meet | Bye | SlowDown | Got | AboutTrackers
AboutDialling = Listening | Seen
AboutKeys = KeyRequest | KeyAnswer
AboutRegistry = (
    ReadChain
    | ChainPage
    | WriteChange
    | Written
    | ListChains
    | ChainList
    | ChainChanged
    | ListHeads
    | HeadList
)
Bulk = Resent | Hand | Fetched  # what holds frames, and may be as large as they are
AboutStorage = Resend | AskStored | Acknowledged | Vote | Voted | Lead | Fetch | Bulk
Small = (
    AboutParts
    | AboutDialling
    | AboutKeys
    | AboutRegistry
    | Introduce
    | Resend
    | AskStored
    | Acknowledged
    | Vote
    | Voted
    | Lead
    | Fetch
)
Control = Small | Bulk

__all__ = [
    "AboutDialling",
    "AboutKeys",
    "AboutParts",
    "AboutRegistry",
    "AboutStorage",
    "AboutTrackers",
    "Acknowledged",
    "AskStored",
    "Bulk",
    "Bye",
    "ChainChanged",
    "ChainHead",
    "ChainList",
    "ChainPage",
    "Contact",
    "Control",
    "Fetch",
    "Fetched",
    "Got",
    "Hand",
    "HeadList",
    "Instruction",
    "Introduce",
    "KeyAnswer",
    "KeyRequest",
    "Lead",
    "Leave",
    "ListChains",
    "ListHeads",
    "Listening",
    "Meet",
    "Probe",
    "Probed",
    "ReadChain",
    "Refused",
    "Report",
    "Resend",
    "Resent",
    "Seen",
    "SlowDown",
    "Small",
    "Status",
    "Vote",
    "Voted",
    "WriteChange",
    "Written",
]
