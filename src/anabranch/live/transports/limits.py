"""How much strangers may ask of us before they have proved anything, by address and in all.

A connection that is not proved for long makes room for a newcomer: the oldest of the newcomer's own
address if that has too many, else the oldest of the address that has most. So connections that
prove nothing keep nobody out, and addresses with many cost those with few nothing.

An IPv6 address counts by its first 64 bits: whoever has one address there has all of them.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from anabranch.core.errors import LocalError

IPV6_PREFIX_BITS = 64

Prefix = ipaddress.IPv4Network | ipaddress.IPv6Network
Evict = Callable[[str | None], bool]  # a pending connection of one place, or of the fullest


def evict_none(place: str | None) -> bool:
    """End no connection."""
    return False


class Limits(msgspec.Struct, frozen=True):
    """What one remote address may have, and all of them together."""

    pending_per_address: int = 16  # connections that have not proved themselves yet
    links_per_address: int = 256
    burst: int = 100  # connections of one address at once, and then
    per_s: float = 50.0
    pending: int = 256
    links: int = 4096
    refusals: int = 64  # told so politely at a time; others are cut off without a word
    dials: int = 4096  # of our own, under way at a time
    idle_addresses: int = 1024  # remembered beyond those that have connections
    trusted: tuple[Prefix, ...] = ()  # proxies: bounds per address are not for them


class _Place(msgspec.Struct, gc=False):
    """What one place has, and how many connections it may still open at once."""

    tokens: float
    refilled_at: float
    pending: int = 0
    links: int = 0


class Admission:
    """Counts the connections that came in, and says which are too many."""

    def __init__(self, limits: Limits) -> None:
        self.pending = 0
        self.links = 0
        self._limits = limits
        # There is room for every place that can have a connection, and more.
        self._bound = 2 * limits.pending + limits.links + limits.idle_addresses
        self._places: OrderedDict[str, _Place] = OrderedDict()  # the latest comer last

    def __len__(self) -> int:
        return len(self._places)

    def admit(
        self, place: str, now: float, is_proxy: bool = False, evict: Evict = evict_none
    ) -> bool:
        """Count a new connection as pending, or refuse it; `evict` makes room, if it can."""
        limits, entry = self._limits, self._entry(place, now)
        if not is_proxy and not self._has_room(entry, place, evict):
            return False
        if self.links >= limits.links:
            return False
        if self.pending >= limits.pending and not evict(None):
            return False
        entry.tokens = max(0.0, entry.tokens - 1)
        entry.pending += 1
        self.pending += 1
        return True

    def _has_room(self, entry: _Place, place: str, evict: Evict) -> bool:
        limits = self._limits
        if entry.tokens < 1 or entry.links >= limits.links_per_address:
            return False
        return entry.pending < limits.pending_per_address or evict(place)

    def prove(self, place: str) -> None:
        """Count a pending connection as a link."""
        entry = self._places[place]
        entry.pending -= 1
        entry.links += 1
        self.pending -= 1
        self.links += 1

    def release(self, place: str, proved: bool) -> None:
        """Count a connection no more."""
        entry = self._places[place]
        if proved:
            entry.links -= 1
            self.links -= 1
        else:
            entry.pending -= 1
            self.pending -= 1

    def _entry(self, place: str, now: float) -> _Place:
        entry = self._places.get(place)
        if entry is None:
            self._shed()
            entry = self._places[place] = _Place(float(self._limits.burst), now)
        self._places.move_to_end(place)
        earned = (now - entry.refilled_at) * self._limits.per_s
        entry.tokens = min(entry.tokens + earned, float(self._limits.burst))
        entry.refilled_at = now
        return entry

    def _shed(self) -> None:
        """Make room: forget who has not come for longest and has nothing here."""
        while len(self._places) >= self._bound:
            place, entry = next(iter(self._places.items()))
            if entry.pending or entry.links:
                self._places.move_to_end(place)
            else:
                del self._places[place]


def parse_prefix(text: str) -> Prefix:
    """Read the addresses of a trusted proxy: one, or a prefix such as 10.0.0.0/8."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise LocalError(
            f"{text!r} is no address or prefix: write one such as 10.0.0.0/8 or 2001:db8::/32"
        ) from error


def is_within(address: str, prefixes: Sequence[Prefix]) -> bool:
    """Tell whether an IP address lies within one of these prefixes; a host name does not."""
    try:
        parsed = _plain(address)
    except ValueError:
        return False
    return any(parsed in prefix for prefix in prefixes)


def is_loopback(address: str) -> bool:
    """Tell whether an address is of this machine alone."""
    return _plain(address).is_loopback


def _plain(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Read an address, an IPv4 one that is written as IPv6 as well."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed


def place_of(address: str) -> str:
    """Return what an IP address counts as."""
    parsed = _plain(address)
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX_BITS), strict=False))
