"""The one link that two nodes keep, however many connections they open to each other.

Two nodes may dial each other at the same time. Of the two connections the one that the node with
the smaller id dialled is kept: that node holds back its Ready from the other connection until it
knows what became of its own; the other node takes what comes and gives up its own dial. And a
node that has lost a link which we still believe in dials again: its new connection is held for a
moment, in case the old one is just ending, and then takes its place.
"""

import asyncio

from anabranch.core.identity import KnownKeys, Verify
from anabranch.core.ids import NodeId
from anabranch.live.transports import LinkOwner
from anabranch.live.transports.connection import Connection
from anabranch.live.transports.dials import CROSSED, Dial
from anabranch.live.transports.timing import Timing

REPLACED = "replaced"


class Links:
    """The links, the connections that wait to be one, and the dials under way."""

    owner: LinkOwner

    def __init__(self, node: NodeId, timing: Timing) -> None:
        self.node = node
        self.timing = timing
        self.verify: Verify = KnownKeys().verify
        self.up: dict[NodeId, Connection] = {}
        self.held: dict[NodeId, Connection] = {}  # each waits for a link to end or a dial to fail
        self.dials: dict[NodeId, Dial] = {}
        self.finds: set[Dial] = set()  # nobody has proved itself there yet
        self.unsent: list[Connection] = []  # with something to write in this turn of the loop
        self.has_turn = False
        self._haste = 0  # how often in this turn something was to leave at once
        self._busy = False  # whether that was often in the last turn that had something to write
        self._closed = False

    def file(self, dial: Dial) -> None:
        """Keep a dial that begins."""
        if dial.peer is None:
            self.finds.add(dial)
        else:
            self.dials[dial.peer] = dial

    def settle(self, dial: Dial, reason: str) -> None:
        """Let a dial fail; a connection that was held for it takes its place."""
        if dial.outcome.done():
            return
        dial.give_up(reason)
        self.finds.discard(dial)
        peer = dial.peer
        if peer is None or self.dials.get(peer) is not dial:
            return
        del self.dials[peer]
        if not self._promote(peer) and dial.asked and not self._closed:
            self.owner.link_down(peer, reason)

    def tick(self) -> None:
        """Let a tick pass: what was held for long enough takes its link's place."""
        patience = self.timing.ticks(self.timing.crossing_s)
        for peer, connection in list(self.held.items()):
            if peer in self.up and connection.ticks > patience:
                self.up[peer].finish(REPLACED)

    def close(self) -> None:
        """End every dial, and tell the owner nothing from now on."""
        self._closed = True
        for dial in [*self.dials.values(), *self.finds]:
            self.settle(dial, "stopped")

    # --- What connections say -------------------------------------------------------------

    def welcomed(self, connection: Connection) -> bool:
        """Whom we dialled has proved itself: go on, unless there is a link or a dial already."""
        dial, peer = connection.dial, connection.peer
        assert dial is not None
        if dial.peer is not None:
            return True
        dial.peer = peer
        self.finds.discard(dial)
        if peer in self.up:
            dial.give_up("")
            return False
        if peer in self.dials:
            self.dials[peer].outcome.add_done_callback(lambda done: dial.give_up(done.result()))
            connection.finish(CROSSED)
            return False
        self.dials[peer] = dial
        return True

    def opened(self, connection: Connection) -> None:
        """Whom we dialled is ready."""
        self._raise(connection)

    def proved(self, connection: Connection) -> None:
        """Who dialled us has proved itself: a link, unless there is one, or ours comes first."""
        connection.wire.prove()
        peer = connection.peer
        earlier = self.held.pop(peer, None)
        if earlier is not None:
            earlier.finish(REPLACED)
        self.held[peer] = connection
        dial = self.dials.get(peer)
        ours_comes_first = dial is not None and not dial.crossed and self.node < peer
        if peer not in self.up and not ours_comes_first:
            self._promote(peer)

    def hasten(self) -> None:
        """Flush them now, unless this was asked more than once in the last turn or in this one."""
        if self.unsent:
            self._haste += 1
            if self._haste == 1 and not self._busy:
                unsent, self.unsent = self.unsent, []
                for connection in unsent:
                    connection.flush()

    def end_turn(self) -> None:
        """Flush what is unsent; before this turn of the loop is over."""
        self.has_turn = False
        self._busy, self._haste = self._haste > 1, 0
        unsent, self.unsent = self.unsent, []
        for connection in unsent:
            connection.flush()

    def let_go(self, connection: Connection) -> None:
        """The owner ends a link, and shall hear nothing more of it."""
        peer = connection.peer
        del self.up[peer]
        if peer in self.held:
            asyncio.get_running_loop().call_soon(self._promote, peer)

    def ended(self, connection: Connection, reason: str) -> None:
        """A connection is over, whatever it was."""
        peer, dial = connection.peer, connection.dial
        if self.up.get(peer) is connection:
            del self.up[peer]
            if not self._closed:
                self.owner.link_down(peer, reason)
                self._promote(peer)
        elif self.held.get(peer) is connection:
            del self.held[peer]
        elif dial is not None and reason == CROSSED and peer not in self.held:
            dial.crossed = True  # the other's connection is on its way to us
        elif dial is not None:
            self.settle(dial, reason)

    # --- Inside ---------------------------------------------------------------------------

    def _promote(self, peer: NodeId) -> bool:
        """Make a link of the connection that is held, if there is one."""
        connection = self.held.pop(peer, None)
        if connection is None or self._closed:
            return False
        connection.accept()
        self._raise(connection)
        return True

    def _raise(self, connection: Connection) -> None:
        peer, dial = connection.peer, self.dials.pop(connection.peer, None)
        assert peer not in self.up
        self.up[peer] = connection
        connection.begin()
        if dial is not None and dial is connection.dial:
            dial.succeed()
        elif dial is not None:
            dial.give_up("")
        held = self.held.pop(peer, None)
        if held is not None:
            held.finish(CROSSED)
        self.owner.link_up(connection)
        connection.measure()
