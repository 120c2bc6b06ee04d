"""Checks whether a node answers at an address: the handshake up to its proof, and no link.

A name may lead anywhere. So it is resolved first, and the address that it resolves to is judged
and then dialled, without asking for the name a second time.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence

from anabranch.core.dial_checks import is_internal
from anabranch.core.handshake import Dialling
from anabranch.core.identity import Verify
from anabranch.core.machine import DialCheck
from anabranch.live.transports import LinkOwner
from anabranch.live.transports.connection import Connection
from anabranch.live.transports.limits import Prefix, is_within
from anabranch.live.transports.timing import Timing
from anabranch.live.transports.wire import Wire

CHECKED = "checked"


class Targets:
    """The IP addresses that may be dialled for one check."""

    def __init__(self, check: DialCheck, own_port: int, proxies: Sequence[Prefix]) -> None:
        """`own_port` is where this process listens."""
        self._check = check
        self._own_port = own_port
        self._proxies = proxies

    async def resolve(self, host: str, port: int) -> str | None:
        """Return the first address of a host that may be dialled; None if there is none."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return None
        addresses = (str(place[0]) for *_, place in found)
        return next((ip for ip in addresses if self.admits(ip, port)), None)

    def admits(self, ip: str, port: int) -> bool:
        """Tell whether an address may be dialled."""
        check, is_here = self._check, is_this_machine(ip)
        if is_within(ip, self._proxies) or (is_here and port == self._own_port):
            return False
        return not check.is_outside or ip == check.seen or not (is_here or is_internal(ip))


def is_this_machine(ip: str) -> bool:
    """Tell whether an IP address is one of this machine; nothing is sent to find out."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((ip, 9))
            return str(probe.getsockname()[0]) == ip.partition("%")[0]
    except OSError:
        return False


class Check:
    """The owner of one connection, which it ends as soon as the node has proved its key.

    The node gets no proof in return. So it opens no link, and a link that the two have already is
    not replaced.
    """

    owner: LinkOwner

    def __init__(self, timing: Timing, verify: Verify, done: Callable[[bool], None]) -> None:
        self.timing = timing
        self.verify = verify
        self.unsent: list[Connection] = []
        self.has_turn = False
        self._done: Callable[[bool], None] | None = done

    def connection(self, wire: Wire, opening: Dialling) -> Connection:
        """Return the connection for a wire."""
        return Connection(self, wire, opening)

    def settle(self, reached: bool) -> None:
        """Tell the result, once."""
        done, self._done = self._done, None
        if done is not None:
            done(reached)

    def welcomed(self, connection: Connection) -> bool:
        """The node has proved its key: that is all."""
        self.settle(True)
        connection.finish(CHECKED)
        return False

    def proved(self, connection: Connection) -> None:
        """Never: the other side does not dial."""

    def opened(self, connection: Connection) -> None:
        """Never: the connection ends before."""

    def end_turn(self) -> None:
        """Nothing is sent on the connection but the handshake."""

    def let_go(self, connection: Connection) -> None:
        """Never: it is no link."""

    def ended(self, connection: Connection, reason: str) -> None:
        """The connection ended, before the proof or after it."""
        self.settle(False)
