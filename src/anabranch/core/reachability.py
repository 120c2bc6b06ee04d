"""A node's knowledge of whether others can dial it, and where.

The node names its address to its trackers (`Listening`), and each tells it whether it could dial
that address and from which host the node's link comes (`Seen`). One tracker or neighbour that
reaches the node outweighs all that do not: they may be behind a firewall of their own.

A node that no tracker can dial at its own address tries the host that they see, with its own port,
unless its operator has named the address to advertise. A host counts if two trackers name it, or
the only tracker there is: a single tracker could lead all nodes to a host of its choice. The new
address is advertised only after a tracker has dialled it. A node that nobody can dial advertises no
address: it dials the others.
"""

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit, urlunsplit

from anabranch.core.ids import NodeId
from anabranch.core.machine import Advertise, Effect, Notice, Send, Sizes
from anabranch.core.messages import Control, Listening, Seen
from anabranch.core.service import Service

TRACKERS_THAT_AGREE = 2  # on a host, where there are so many
MAX_TRACKERS = 64  # of which the last answer is kept
MAX_DIALLERS = 1_024  # neighbours that dialled this node; one would do


class Reachability(Service):
    """Names this node's address to its trackers, and decides what the node advertises."""

    messages = (Seen,)

    def __init__(
        self, address: str, is_given: bool, trackers: Callable[[], Sequence[NodeId]]
    ) -> None:
        """`is_given`: the operator named the address; `trackers` are those of the network."""
        self.address = address  # where it can be dialled, as far as it knows
        self.dialable = bool(address)
        self._is_given = is_given
        self._trackers = trackers
        self._linked: dict[NodeId, None] = {}  # trackers
        self._answers: dict[NodeId, Seen] = {}  # of trackers, the last one of each
        self._diallers: dict[NodeId, None] = {}  # neighbours that dialled, as long as they stay

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Name the address to every tracker that is linked."""
        if not up:
            self._linked.pop(peer, None)
            self._diallers.pop(peer, None)
        elif self.address and peer in self._trackers():
            self._linked[peer] = None
            return [Send(peer, Listening(self.address))]
        return []

    def accepted(self, peer: NodeId, now: float) -> list[Effect]:
        """Note that a peer has dialled this node; trackers dial only to check, and tell."""
        if peer in self._trackers() or len(self._diallers) >= MAX_DIALLERS:
            return []
        self._diallers[peer] = None
        return self._decide()

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take a tracker's answer."""
        trackers = self._trackers()
        if type(message) is not Seen or sender not in trackers:
            return []
        self._answers[sender] = message
        self._answers = {node: seen for node, seen in self._answers.items() if node in trackers}
        while len(self._answers) > MAX_TRACKERS:
            del self._answers[next(iter(self._answers))]
        return self._decide()

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "answers of trackers": (len(self._answers), MAX_TRACKERS),
            "nodes that dialled": (len(self._diallers), MAX_DIALLERS),
        }

    def _decide(self) -> list[Effect]:
        """Advertise the address, look for another one, or advertise none."""
        answers = [seen for seen in self._answers.values() if seen.address == self.address]
        if any(seen.dialable for seen in answers) or self._diallers:
            return self._change(True)
        if not answers:
            return []
        effects = self._change(False)
        elsewhere = self._seen_elsewhere()
        if elsewhere is not None:
            self.address = elsewhere
            effects += [Send(tracker, Listening(elsewhere)) for tracker in self._linked]
        return effects

    def _seen_elsewhere(self) -> str | None:
        """Return this node's address at the host that its trackers see, if that is another one."""
        if self._is_given:
            return None
        hosts = [seen.host for seen in self._answers.values() if seen.host]
        needed = min(TRACKERS_THAT_AGREE, len(self._trackers()))
        host = next((host for host in hosts if hosts.count(host) >= needed), None)
        address = None if host is None else at_host(self.address, host)
        return None if address == self.address else address

    def _change(self, dialable: bool) -> list[Effect]:
        """Tell the overlays and the operator if something has changed."""
        if dialable == self.dialable:
            return []
        self.dialable = dialable
        if dialable:
            notice = Notice(None, "dialable", f"others can dial this node at {self.address}")
            return [Advertise(self.address, True), notice]
        text = (
            f"no tracker can dial this node at {self.address}: it only dials others, and gets no "
            "link with nodes that nobody can dial either. Open that port in the firewall, or name "
            "an address that can be dialled with --advertise"
        )
        return [Advertise("", False), Notice(None, "undialable", text)]


def at_host(address: str, host: str) -> str | None:
    """Return the same address at another host; None if it is no address with a port."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    if port is None or not parts.hostname:
        return None
    shown = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=f"{shown}:{port}"))
