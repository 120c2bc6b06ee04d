"""How links are made of the world: what a transport offers, and what it tells its owner.

A transport proves who is at the other end before it speaks of a link, and keeps at most one link
to a node. It never reads the machine and the machine never sees it: the driver stands between.
"""

from collections.abc import Callable
from typing import Protocol

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck
from anabranch.core.packets import Packets
from anabranch.live.errors import AnabranchError


class TransportError(AnabranchError):
    """An address could not be reached or proved; the text says what to do."""


class Link(Protocol):
    """A proved connection to one node."""

    peer: NodeId
    rtt_s: float | None
    host: str  # the IP address from which the peer dialled; empty if this side dialled

    def send(self, *packets: bytes) -> None:
        """Queue packets; all that is queued in one turn of the loop leaves in one write."""

    def withdraw(self, names: list[bytes]) -> int:
        """Take frames with these heads out of the queue; return how many bytes that were."""

    def close(self, reason: str) -> None:
        """End the link; its owner hears nothing more of it."""


class LinkOwner(Protocol):
    """Who is told what happens on the links: the driver."""

    def link_up(self, link: Link) -> None:
        """A link stands, whoever dialled; any older link to the same node is over."""

    def link_down(self, peer: NodeId, reason: str) -> None:
        """The link to `peer` ended, or dialling it failed."""

    def received(self, peer: NodeId, packets: Packets) -> None:
        """Packets came, in order."""

    def rtt(self, peer: NodeId, seconds: float) -> None:
        """The round trip was measured anew."""

    def congested(self, peer: NodeId) -> None:
        """What waits for `peer` has passed the high mark."""

    def writable(self, peer: NodeId) -> None:
        """What waits for `peer` has fallen below the low mark again."""


class Transport(Protocol):
    """A way to reach other nodes."""

    address: str  # where others dial us; empty if nobody can
    is_address_given: bool  # by the operator, to be dialled as it is

    async def start(self, owner: LinkOwner) -> None:
        """Begin to listen, and to tell `owner`."""

    def dial(self, peer: NodeId, address: str) -> None:
        """Reach `peer`; a link_up or a link_down answers, never before this call returns.

        While a dial to it is under way this adds none; where a link stands it does nothing.
        """

    def hasten(self) -> None:
        """Let what is queued leave now, and not only in the loop's next turn.

        It saves a single packet a delay; where packets come thick, they still leave together.
        """

    def check(self, check: DialCheck, done: Callable[[bool], None]) -> None:
        """Tell whether a node proves itself at an address; `done` is called after this returns.

        It makes no link, and a link that stands with the node is left as it is.
        """

    async def find(self, address: str) -> NodeId:
        """Reach whoever proves itself at an address; its link_up comes before this returns."""

    async def stop(self) -> None:
        """Send what is queued, within a bounded time, and end all links; `owner` is not told."""
