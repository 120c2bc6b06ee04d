"""Where a network is: its name, which its genesis record decides, and hosts to ask.

anabranch://GENESIS@host:port       GENESIS is 64 hexadecimal digits
anabranchs://GENESIS@host:port      the same over TLS
anabranch://GENESIS@one,two:7702    hosts that are tried in turn; 7700 unless a port is named
anabranch://GENESIS@[::1]:7700      IPv6 stands in brackets
"""

import ipaddress
import re
from typing import NamedTuple, NoReturn

import msgspec

from anabranch.core.errors import LocalError

GENESIS_BYTES = 32
DEFAULT_PORT = 7700
MAX_PORT = 65535
MAX_HOSTS = 16
MAX_HOST_LENGTH = 253  # the longest name that DNS can hold
EXAMPLE = "anabranch://<64 hexadecimal digits>@127.0.0.1:7700"

_SECURE = {"anabranch": False, "anabranchs": True}
_GENESIS = re.compile(rf"[0-9a-fA-F]{{{2 * GENESIS_BYTES}}}")
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::([0-9]{1,5}))?")


class Host(NamedTuple):
    """A place that listens; an IPv6 address without its brackets."""

    name: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class NetworkAddress(msgspec.Struct, frozen=True):
    """A network and the hosts through which to reach it, the first one first."""

    genesis: bytes
    hosts: tuple[Host, ...]
    secure: bool = False

    def __post_init__(self) -> None:
        if len(self.genesis) != GENESIS_BYTES:
            raise LocalError(
                f"the name of a network has {GENESIS_BYTES} bytes, this one {len(self.genesis)}"
            )
        if not 1 <= len(self.hosts) <= MAX_HOSTS:
            raise LocalError(
                f"an address names 1 to {MAX_HOSTS} hosts, this one {len(self.hosts)}: "
                f"write {EXAMPLE}"
            )

    def __str__(self) -> str:
        scheme = "anabranchs" if self.secure else "anabranch"
        return f"{scheme}://{self.genesis.hex()}@{','.join(map(str, self.hosts))}"

    @property
    def ws_urls(self) -> tuple[str, ...]:
        """What to dial, in turn."""
        scheme = "wss" if self.secure else "ws"
        return tuple(f"{scheme}://{host}" for host in self.hosts)


def parse_address(text: str) -> NetworkAddress:
    """Read the address of a network as people write it."""
    text = text.strip()
    scheme, found, rest = text.partition("://")
    secure = _SECURE.get(scheme.lower())
    if not found or secure is None:
        _refuse(text, "it begins with neither anabranch:// nor anabranchs://")
    genesis, found, hosts = rest.partition("@")
    if not found:
        _refuse(text, "no @ parts the network's name from its hosts")
    if not _GENESIS.fullmatch(genesis):
        _refuse(text, f"the network's name is not {2 * GENESIS_BYTES} hexadecimal digits")
    return NetworkAddress(
        bytes.fromhex(genesis), tuple(_host(text, host) for host in hosts.split(",")), secure
    )


def _host(address: str, text: str) -> Host:
    if not text:
        _refuse(address, "a host is missing")
    if text.count(":") > 1 and not text.startswith("["):
        _refuse(address, f"{text!r} is no host: an IPv6 address stands in brackets, as in [::1]")
    found = _HOST.fullmatch(text)
    if found is None or len(text) > MAX_HOST_LENGTH:
        _refuse(address, f"{text[:MAX_HOST_LENGTH]!r} is not a host, or a host and a port")
    v6, name, digits = found.groups()
    if v6 is not None:
        try:
            name = str(ipaddress.IPv6Address(v6))
        except ValueError:
            _refuse(address, f"{v6!r} is not an IPv6 address")
    port = DEFAULT_PORT if digits is None else int(digits)
    if not 1 <= port <= MAX_PORT:
        _refuse(address, f"port {port} does not exist, ports go from 1 to {MAX_PORT}")
    return Host(name, port)


def _refuse(address: str, why: str) -> NoReturn:
    shown = address if len(address) <= MAX_HOST_LENGTH else address[:MAX_HOST_LENGTH] + "..."
    raise LocalError(f"{shown!r} is not the address of a network: {why}; write {EXAMPLE}")
