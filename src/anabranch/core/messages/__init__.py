"""Every message on the wire, once: the whole protocol is this union and the frame of data.

A message is a msgpack array that opens with its tag. Tags are never used again for another
meaning: 1 to 15 between neighbours, 16 to 31 between nodes and trackers, 32 to 47 about the
registry, 48 to 79 about storage, 128 to 131 in the handshake.
"""

from anabranch.core.messages.links import (
    Bye,
    Got,
    Introduce,
    KeyAnswer,
    KeyRequest,
    Meet,
    SlowDown,
    StorageSlowDown,
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
    AskEntries,
    AskLacking,
    AskRanges,
    AskRank,
    AskStored,
    Declined,
    Disagree,
    Entries,
    Fetch,
    Fetched,
    Hand,
    Lacking,
    LackingNames,
    Lead,
    Marked,
    Ranges,
    Ranked,
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
AboutParts = Meet | Bye | SlowDown | StorageSlowDown | Got | AboutTrackers
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
Bulk = Resent | Hand | Fetched | Entries | Lacking  # with frames: may be as large as they are
AboutComparison = AskRanges | Ranges | AskLacking
AboutRanks = Marked | AskRank | Ranked | Disagree
AboutStorage = (
    Resend
    | AskStored
    | Acknowledged
    | LackingNames
    | Declined
    | Vote
    | Voted
    | Lead
    | Fetch
    | AskEntries
    | AboutComparison
    | AboutRanks
    | Bulk
)
Small = (
    AboutParts
    | AboutDialling
    | AboutKeys
    | AboutRegistry
    | Introduce
    | Resend
    | AskStored
    | Acknowledged
    | LackingNames
    | Declined
    | Vote
    | Voted
    | Lead
    | Fetch
    | AskEntries
    | AboutComparison
    | AboutRanks
)
Control = Small | Bulk

__all__ = [
    "AboutComparison",
    "AboutDialling",
    "AboutKeys",
    "AboutParts",
    "AboutRanks",
    "AboutRegistry",
    "AboutStorage",
    "AboutTrackers",
    "Acknowledged",
    "AskEntries",
    "AskLacking",
    "AskRanges",
    "AskRank",
    "AskStored",
    "Bulk",
    "Bye",
    "ChainChanged",
    "ChainHead",
    "ChainList",
    "ChainPage",
    "Contact",
    "Control",
    "Declined",
    "Disagree",
    "Entries",
    "Fetch",
    "Fetched",
    "Got",
    "Hand",
    "HeadList",
    "Instruction",
    "Introduce",
    "KeyAnswer",
    "KeyRequest",
    "Lacking",
    "LackingNames",
    "Lead",
    "Leave",
    "ListChains",
    "ListHeads",
    "Listening",
    "Marked",
    "Meet",
    "Probe",
    "Probed",
    "Ranges",
    "Ranked",
    "ReadChain",
    "Refused",
    "Report",
    "Resend",
    "Resent",
    "Seen",
    "SlowDown",
    "Small",
    "Status",
    "StorageSlowDown",
    "Vote",
    "Voted",
    "WriteChange",
    "Written",
]
