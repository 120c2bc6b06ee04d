"""Every message on the wire, once: the whole protocol is this union and the frame of data.

A message is a msgpack array that opens with its tag. Tags are never used again for another
meaning: 1 to 15 between neighbours, 16 to 31 between nodes and trackers.
"""

from anabranch.core.messages.links import Bye, Meet, SlowDown
from anabranch.core.messages.tracker import Contact, Instruction, Leave, Status

Control = Meet | Bye | SlowDown | Status | Instruction | Leave

__all__ = ["Bye", "Contact", "Control", "Instruction", "Leave", "Meet", "SlowDown", "Status"]
