"""A tracker's checks whether nodes can be dialled where they say that they listen.

A node names its address (`Listening`). The tracker dials it, lets the node prove its key, and hangs
up; then it tells the node the result and the host from which the node's own link comes (`Seen`). It
checks again at a new address, after a failed dial between two nodes, and every ten minutes.

A node that names the address of somebody else must not turn the tracker into a port scanner or into
a source of traffic. So a node is dialled at most once a minute, whatever address it names and
however often it reconnects; the nodes of one host are dialled at a bounded rate, and so is one host
that nodes elsewhere name; a node outside cannot have an internal address dialled, and the driver
checks the same of the addresses that a name resolves to; the tracker's own address and those of
proxies are never dialled; and all failures take equally long to be told, so that a closed port
looks like a silent one. A node that is seen at a proxy counts as outside: its host is unknown.
"""

import ipaddress
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

import msgspec

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck, DialChecked, Effect, Send, Sizes
from anabranch.core.messages import Seen
from anabranch.core.quotas import Allowance
from anabranch.core.timers import Timers

EVERY_S = 60.0  # between two dials of one node
CHECK_AGAIN_S = 600.0
FAILED_AFTER_S = 6.0  # when a failure is told, which is longer than any dial takes
FORGET_AFTER_S = 30.0  # a dial that the driver has not answered
LATER_S = 1.0  # how long a check waits that has no room now
MAX_UNDER_WAY = 32
MAX_NODES = 16_384
MAX_DIALLED = 20_000  # nodes of which the last dial is remembered
MAX_HOSTS = 4_096
HOST_BURST, HOST_PER_S = 64.0, 1.0  # dials for the nodes of one host; dials to a host elsewhere

Place = tuple[str, int]
IsProxy = Callable[[str], bool]  # whether an IP address is that of a proxy in front of the tracker


def no_proxy(host: str) -> bool:
    """Take no address for a proxy's."""
    return False


class _Node(msgspec.Struct):
    """A node with a link to the tracker."""

    host: str  # from which its link comes, if it is known and no proxy's
    is_outside: bool = False  # it must not have internal addresses dialled
    address: str | None = None  # None: it has not named one
    dialable: bool | None = None  # at this address; None: unknown


class _Dialled(msgspec.Struct):
    """The last dial of a node, which its links do not outlive."""

    at: float
    is_answered: bool = False  # whether a dial of the node has ever had a result


class DialChecks:
    """Dials nodes at the addresses that they name, and tells them the result."""

    def __init__(self, own: Collection[str] = (), is_proxy: IsProxy = no_proxy) -> None:
        """`own` are this tracker's addresses; nodes that are seen at a proxy are elsewhere."""
        self._own = {place for place in map(place_at, own) if place is not None}
        self._is_proxy = is_proxy
        self._nodes: dict[NodeId, _Node] = {}
        self._dialled: dict[NodeId, _Dialled] = {}
        self._under_way: dict[NodeId, float] = {}
        self._of_host: dict[str, Allowance] = {}
        self._to_host: dict[str, Allowance] = {}  # for nodes that are seen elsewhere
        self._due: Timers[NodeId] = Timers()
        self._to_tell: Timers[NodeId] = Timers()  # failures

    @property
    def wakeup_at(self) -> float | None:
        """When the next check or answer is due."""
        times = [at for at in (self._due.next_at, self._to_tell.next_at) if at is not None]
        return min(times, default=None)

    def link(self, peer: NodeId, host: str) -> None:
        """Note a link, and the host from which it comes."""
        if len(self._nodes) < MAX_NODES:
            is_hidden = self._is_proxy(host)
            is_outside = is_hidden or bool(host and not is_internal(host))
            self._nodes[peer] = _Node("" if is_hidden else host, is_outside)

    def gone(self, peer: NodeId) -> None:
        """Forget a node whose link has ended."""
        self._nodes.pop(peer, None)
        self._due.cancel(peer)
        self._to_tell.cancel(peer)

    def listening(self, peer: NodeId, address: str, now: float) -> list[Effect]:
        """Check an address that a node names; answer at once what is known."""
        node = self._nodes.get(peer)
        if node is None:
            return []
        if address == node.address:
            is_known = node.dialable is not None and peer not in self._to_tell
            return [self._seen(peer, node)] if is_known else []
        node.address, node.dialable = address, None
        self._to_tell.cancel(peer)
        if self._may_dial(node):
            self._check_at(peer, now)
        else:
            node.dialable = False
            self._due.cancel(peer)
            self._to_tell.set(peer, now + FAILED_AFTER_S)
        return self._begin(now)

    def is_new(self, peer: NodeId) -> bool:
        """Tell whether it is not known yet if a node can be dialled, and never was."""
        node, dialled = self._nodes.get(peer), self._dialled.get(peer)
        if node is None or node.address is None:
            return False
        is_open = node.dialable is None or peer in self._to_tell
        return is_open and (dialled is None or not dialled.is_answered)

    def has_failed(self, peer: NodeId) -> bool:
        """Tell whether the last dial of a node has failed."""
        node = self._nodes.get(peer)
        return node is not None and node.dialable is False

    def doubt(self, peer: NodeId, now: float) -> None:
        """Check a node again, since another node could not dial it."""
        node = self._nodes.get(peer)
        if node is not None and node.address is not None and self._may_dial(node):
            self._check_at(peer, now)

    def checked(self, event: DialChecked, now: float) -> list[Effect]:
        """Take the result of a dial."""
        peer, node = event.peer, self._nodes.get(event.peer)
        self._under_way.pop(peer, None)
        if node is None or node.address != event.address:
            return self._begin(now)
        node.dialable = event.reached
        self._check_at(peer, now + CHECK_AGAIN_S)
        dialled = self._dialled.get(peer)
        if event.reached:
            self._to_tell.cancel(peer)
            return [*self._tell(peer), *self._begin(now)]
        self._to_tell.set(peer, max(now, (dialled.at if dialled else now) + FAILED_AFTER_S))
        return self._begin(now)

    def wake(self, now: float) -> list[Effect]:
        """Dial and tell what is due."""
        told = [effect for peer in self._to_tell.pop_due(now) for effect in self._tell(peer)]
        return [*told, *self._begin(now)]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "nodes to dial": (len(self._nodes), MAX_NODES),
            "nodes dialled": (len(self._dialled), MAX_DIALLED),
            "dials to check": (len(self._under_way), MAX_UNDER_WAY),
            "hosts of nodes": (len(self._of_host), MAX_HOSTS),
            "hosts that nodes elsewhere name": (len(self._to_host), MAX_HOSTS),
        }

    def _tell(self, peer: NodeId) -> list[Effect]:
        if peer in self._dialled:
            self._dialled[peer].is_answered = True
        return [self._seen(peer, self._nodes[peer])]

    def _seen(self, peer: NodeId, node: _Node) -> Effect:
        return Send(peer, Seen(node.host, node.address or "", bool(node.dialable)))

    def _check_at(self, peer: NodeId, at: float) -> None:
        dialled = self._dialled.get(peer)
        self._due.set(peer, at if dialled is None else max(at, dialled.at + EVERY_S))

    def _begin(self, now: float) -> list[Effect]:
        """Begin the checks that are due, as far as there is room for them."""
        for peer in [p for p, at in self._under_way.items() if at <= now - FORGET_AFTER_S]:
            del self._under_way[peer]
        effects: list[Effect] = []
        for peer in self._due.pop_due(now):
            node = self._nodes[peer]
            has_room = len(self._under_way) < MAX_UNDER_WAY and peer not in self._under_way
            if not has_room or not self._spend(node, now):
                self._due.set(peer, now + LATER_S)
                continue
            self._under_way[peer] = now
            before = self._dialled.pop(peer, None)
            self._dialled[peer] = _Dialled(now, before is not None and before.is_answered)
            if len(self._dialled) > MAX_DIALLED:
                del self._dialled[next(iter(self._dialled))]
            effects.append(DialCheck(peer, node.address or "", node.host, node.is_outside))
        return effects

    def _spend(self, node: _Node, now: float) -> bool:
        """Count a dial for a node's own host, and for the host that it names if that is another.

        So nodes elsewhere cannot use up the dials that the nodes of a host need themselves.
        """
        if not _allowance(self._of_host, node.host, now).spend(now):
            return False
        place = place_at(node.address or "")
        if place is None or not node.host or place[0] == node.host:
            return True
        return _allowance(self._to_host, place[0], now).spend(now)

    def _may_dial(self, node: _Node) -> bool:
        """Tell whether the tracker dials the address that a node names."""
        place = place_at(node.address or "")
        if place is None:
            return False
        host, port = place
        is_own_port = any(port == own for _, own in self._own)
        if place in self._own or self._is_proxy(host) or (is_own_port and is_loopback(host)):
            return False
        return not (node.is_outside and is_internal(host))


def _allowance(hosts: dict[str, Allowance], host: str, now: float) -> Allowance:
    """Return the allowance of a host; the host that was dialled longest ago makes room."""
    found = hosts.pop(host, None) or Allowance(HOST_BURST, HOST_PER_S, now)
    hosts[host] = found
    if len(hosts) > MAX_HOSTS:
        del hosts[next(iter(hosts))]
    return found


def place_at(address: str) -> Place | None:
    """Return the host and the port of an address such as ws://host:port; None if it is none."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not parts.scheme or not host:
        return None
    return host, port if port is not None else (443 if parts.scheme == "wss" else 80)


def is_internal(host: str) -> bool:
    """Tell whether a host is an IP address that is not reached from everywhere, or a local name."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local", ".internal"))


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
