"""Checks whether a node answers at an address: the handshake up to its proof, and no link."""

from collections.abc import Callable

from anabranch.core.handshake import Dialling
from anabranch.core.identity import Verify
from anabranch.live.transports import LinkOwner
from anabranch.live.transports.connection import Connection
from anabranch.live.transports.timing import Timing
from anabranch.live.transports.wire import Wire

CHECKED = "checked"


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
