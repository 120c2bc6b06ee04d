"""One WebSocket between two nodes, whoever dialled: it opens, it is a Link, it ends.

What is queued within one turn of the loop leaves in one write. Silence and patience are counted
in ticks of the transport's one timer, not read from a clock: a process that stood still for a
while comes back to one tick, and does not take everybody else for dead.

Each message of a link carries a tag (core/link_mac.py), and so do the echo requests that measure
the round trip, and the answers to them. The pings and pongs of WebSockets carry none: they do not
show that the other side lives, because anyone on the path could have made them.

Ending is polite where it can be: what is queued leaves, the other side is told why, and its
answer is awaited, because a socket closed over unread bytes would destroy what we sent last.
"""

import asyncio
import re
import time
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from anabranch.core.codec import name_of
from anabranch.core.errors import RemoteError
from anabranch.core.handshake import Accepting, Dialling
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId
from anabranch.core.link_mac import MAC_BYTES, LinkMac
from anabranch.core.packets import Packets
from anabranch.live.transports import LinkOwner
from anabranch.live.transports.batches import (
    COVERED_BYTES,
    ECHO,
    LENGTH_BYTES,
    LENGTHS,
    batches,
    join_one,
    split,
    without,
)
from anabranch.live.transports.timing import Timing

if TYPE_CHECKING:
    from anabranch.live.transports.dials import Dial
    from anabranch.live.transports.wire import Wire

HIGH_MARK_BYTES = 1024 * 1024
LOW_MARK_BYTES = 256 * 1024
MAX_QUEUED_BYTES = 16 * 1024 * 1024  # a link that waits with more is cut
SAMPLES = 7  # of the round trip, of which the median counts
MAX_ASKED = 64  # echo requests without an answer that are remembered: 5 minutes of them
MAX_REASON_BYTES = 123  # what a close frame has room for

_ROOM_BYTES = 14  # picows writes a WebSocket frame's head here, in front of the batch
_FRAME_ROOM = bytes(_ROOM_BYTES)
_WORD = re.compile(rb"[a-z][a-z-]{0,31}")
_BINARY, _TEXT = WSMsgType.BINARY, WSMsgType.TEXT
_PING, _PONG, _CLOSE = WSMsgType.PING, WSMsgType.PONG, WSMsgType.CLOSE
_REQUEST, _ANSWER = ECHO + b"\0", ECHO + b"\1"  # each followed by the time of the request
_ECHO_BYTES = len(_REQUEST) + 8


class Keeper(Protocol):
    """Who keeps the connections: the transport."""

    timing: Timing
    owner: LinkOwner
    verify: Verify
    unsent: list["Connection"]  # whose queues wait to be written
    has_turn: bool  # whether this turn of the loop will end with `end_turn`

    def welcomed(self, connection: "Connection") -> bool:
        """Whom we dialled has proved itself: shall we?"""

    def proved(self, connection: "Connection") -> None:
        """Who dialled us has proved itself."""

    def opened(self, connection: "Connection") -> None:
        """Whom we dialled is ready."""

    def end_turn(self) -> None:
        """Flush what is unsent."""

    def let_go(self, connection: "Connection") -> None:
        """The owner ends this link."""

    def ended(self, connection: "Connection", reason: str) -> None:
        """The connection is over; told once."""


class Stage(Enum):
    """Where a connection stands."""

    OPENING = auto()
    PROVED = auto()  # the dialler waits for our Ready
    UP = auto()
    OVER = auto()


# Reading a module's name is several times cheaper than reading a member of an enum.
_UP, _OVER = Stage.UP, Stage.OVER


class Connection(WSListener):
    """A WebSocket from its upgrade to its end; a Link while it is up."""

    # A dictionary for each would be one more thing to fetch from memory for every packet.
    __slots__ = (
        *("_asked", "_asked_at", "_buffered_bytes", "_flush_due", "_full", "_is_paused", "_keeper"),
        *("_loop", "_mac", "_opening", "_queue", "_queued_bytes", "_samples", "_silent_ticks"),
        *("_socket",),
        *("dial", "host", "peer", "rtt_s", "stage", "ticks", "wire"),
    )

    def __init__(
        self,
        keeper: Keeper,
        wire: "Wire",
        opening: Dialling | Accepting,
        dial: "Dial | None" = None,
    ) -> None:
        self.peer = NodeId(b"")  # until it has proved itself
        self.rtt_s: float | None = None
        self.host = ""  # from which the peer dialled
        self.stage = Stage.OPENING
        self.wire = wire
        self.dial = dial  # of ours, which this connection serves
        self.ticks = 0  # since the stage began
        self._keeper = keeper
        self._opening = opening
        self._mac: LinkMac  # of the opening, once the link is up
        self._loop = asyncio.get_running_loop()
        self._socket: WSTransport | None = None
        self._asked_at = 0.0  # read from a finer clock than a loop's
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._is_paused = False  # the transport below holds more than it should,
        self._buffered_bytes = 0  # and held so much after the last flush
        self._flush_due = False
        self._full = False
        self._silent_ticks = 0
        self._asked: deque[bytes] = deque(maxlen=MAX_ASKED)  # echo requests without an answer
        self._samples: deque[float] = deque(maxlen=SAMPLES)

    # --- A link, as its owner sees it -----------------------------------------------------

    def send(self, *packets: bytes) -> None:
        """Queue packets; all that is queued in one turn of the loop leaves in one write."""
        if self.stage is not _UP or self._full:
            return
        self._queue += packets
        self._queued_bytes += LENGTH_BYTES * len(packets) + sum(map(len, packets))
        if self._queued_bytes + self._buffered_bytes > MAX_QUEUED_BYTES:
            self._full = True  # the flush that is due ends the link, after this call returned
            self._queue.clear()
        if not self._flush_due:
            self._flush_due = True
            keeper = self._keeper
            keeper.unsent.append(self)
            if not keeper.has_turn:
                keeper.has_turn = True
                self._loop.call_soon(keeper.end_turn)

    def withdraw(self, names: list[bytes]) -> int:
        """Take frames with these heads out of the queue; return how many bytes that were."""
        queue = self._queue
        if len(queue) == len(names) == 1:  # as nearly always, if there is any
            if name_of(queue[0]) != names[0]:
                return 0
            self._queue, size = [], len(queue[0])
        elif queue:
            self._queue, size = without(queue, names)
        else:
            return 0
        self._queued_bytes -= size + LENGTH_BYTES * (len(queue) - len(self._queue))
        return size

    def close(self, reason: str) -> None:
        """End the link; its owner hears nothing more of it."""
        if self.stage is _UP:
            self._keeper.let_go(self)
            self.finish(reason)

    # --- What the transport does with it --------------------------------------------------

    def accept(self) -> None:
        """Tell the dialler that the link stands."""
        assert self.stage is Stage.PROVED
        assert isinstance(self._opening, Accepting)
        self._say(self._opening.ready())

    def begin(self) -> None:
        """Be a link from now on."""
        self._mac = self._opening.mac
        self._enter(Stage.UP)

    def flush(self) -> None:
        """Write what waits."""
        self._flush_due = False
        if self.stage is not _UP:
            return
        queue = self._queue
        if len(queue) == 1:  # as nearly always
            assert self._socket is not None
            self._queue, self._queued_bytes = [], 0
            packet = queue[0]
            if len(packet) <= COVERED_BYTES:
                batch = LENGTHS[len(packet)] + packet
                message = bytearray().join((_FRAME_ROOM, batch, self._mac.tag(batch)))
            else:
                message = join_one(packet, self._mac.tag, _FRAME_ROOM)
            self._socket.send_reuse_external_bytearray(_BINARY, message, _ROOM_BYTES)
            if self._is_paused:
                self._buffered_bytes = self._socket.underlying_transport.get_write_buffer_size()
        elif queue:  # else all of it was withdrawn
            self._write_queue()
        if self._full:
            self.finish("link-full", abort=True)

    def finish(
        self, reason: str, code: WSCloseCode = WSCloseCode.OK, *, abort: bool = False
    ) -> None:
        """End the connection; `abort` does without a goodbye."""
        if self.stage is Stage.OVER:
            return
        self._enter(Stage.OVER)
        if abort or self._socket is None:
            self.wire.abort()
        else:
            self._write_queue()
            self._socket.send_close(code, reason.encode()[:MAX_REASON_BYTES])
        self._keeper.ended(self, reason)

    def measure(self) -> None:
        """Ask for an echo, to know the round trip and that the other side lives."""
        if self.stage is _UP:
            asked = time.perf_counter_ns().to_bytes(8)
            self._asked.append(asked)
            self._send_tagged(_REQUEST + asked)

    def tick(self) -> None:
        """Let a tick pass."""
        timing = self._keeper.timing
        self.ticks += 1
        if self.stage is _UP:
            self._silent_ticks += 1
            if self._silent_ticks > timing.ticks(timing.silent_s):
                self.finish("timeout", abort=True)
            elif self.ticks % timing.ticks(timing.ping_every_s) == 0 or (
                # A new link is measured soon, or those who plan by it would know one echo only.
                not self._asked
                and len(self._samples) < SAMPLES
                and self.ticks % timing.ticks(timing.ping_new_s) == 0
            ):
                self.measure()
        elif self.stage is Stage.OVER:
            if self.ticks > timing.ticks(timing.linger_s):
                self.wire.abort()
        elif self.stage is Stage.OPENING and self.ticks > timing.ticks(timing.dial_s):
            self.finish("timeout")

    # --- What picows says -----------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The upgrade is done; the dialler speaks first."""
        self._socket = transport
        transport.underlying_transport.set_write_buffer_limits(HIGH_MARK_BYTES, LOW_MARK_BYTES)
        if self.stage is Stage.OVER:  # given up meanwhile
            self.wire.abort()
        elif isinstance(self._opening, Dialling):
            self._say(self._opening.open())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """A frame came; what is wrong with it costs the sender the connection."""
        kind = frame.msg_type
        if self.stage is _OVER:
            if kind == _CLOSE:
                transport.disconnect()
            return
        if transport.is_close_frame_sent:  # picows has refused what came before this
            return
        try:
            if kind == _BINARY and frame.fin:
                if self.stage is _UP:
                    self._receive(frame.get_payload_as_bytes())
                else:
                    self._open(frame.get_payload_as_bytes())
            elif kind == _PING:
                transport.send_pong(frame.get_payload_as_bytes())
                self._bound_answers()
            elif kind == _PONG:
                pass  # of no ping of ours: it may come unasked
            elif kind == _CLOSE:
                self.finish(_word(frame.get_close_message()))
                transport.disconnect()
            else:
                raise RemoteError("text-message" if kind == _TEXT else "fragments")
        except RemoteError as error:
            self.finish(error.reason, WSCloseCode.POLICY_VIOLATION)
        except Exception as error:
            # picows would only log this. It is our own mistake, or our owner's: say so aloud.
            said = {"message": "a packet could not be handled", "exception": error}
            self._loop.call_exception_handler(said)
            self.finish("internal-error", WSCloseCode.INTERNAL_ERROR)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The socket is gone."""
        if self.stage is Stage.OVER:
            return
        self._enter(Stage.OVER)
        goodbye = transport.close_handshake
        if goodbye is None or goodbye.sent is None:
            reason = "lost"
        else:  # picows said it for us
            too_big = goodbye.sent.code == WSCloseCode.MESSAGE_TOO_BIG
            reason = "message-size" if too_big else "websocket-protocol"
        self._keeper.ended(self, reason)

    def pause_writing(self) -> None:
        """What the transport below holds has passed the high mark."""
        self._is_paused = True
        if self.stage is _UP:
            self._keeper.owner.congested(self.peer)

    def resume_writing(self) -> None:
        """It has fallen to the low mark again."""
        self._is_paused, self._buffered_bytes = False, 0
        if self.stage is _UP:
            self._keeper.owner.writable(self.peer)

    # --- Inside ---------------------------------------------------------------------------

    def _receive(self, message: bytes) -> None:
        """Check the tag of a message, and handle it."""
        end = len(message) - MAC_BYTES
        if LENGTH_BYTES < end <= LENGTH_BYTES + COVERED_BYTES and message.startswith(
            LENGTHS[end - LENGTH_BYTES]
        ):  # one packet, as nearly always
            came, covered = Packets(message, (LENGTH_BYTES, end)), message[:end]
        elif message.startswith(ECHO):
            came, covered = None, message[:end]
        else:
            try:
                came, covered = split(message)
            except RemoteError:  # a mistake of the peer, if it has a tag, and a forgery if not
                self._mac.check(message[:end], message[end:])
                raise
        self._mac.check(covered, message[end:])
        self._silent_ticks = 0
        if came is None:
            self._handle_echo(covered)
        else:
            self._keeper.owner.received(self.peer, came)

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self.ticks = 0

    def _open(self, payload: bytes) -> None:
        if self.stage is Stage.PROVED:
            raise RemoteError("handshake-order", "a packet before our Ready")
        if isinstance(self._opening, Dialling):
            self._go_on_dialling(self._opening, payload)
        else:
            self._go_on_accepting(self._opening, payload)

    def _go_on_dialling(self, opening: Dialling, payload: bytes) -> None:
        if opening.peer is not None:
            opening.finish(payload)
            self._keeper.opened(self)
            return
        self.rtt_s = time.perf_counter() - self._asked_at
        self.peer, proof = opening.prove(payload, self._keeper.verify)
        self.wire.prove()
        if self._keeper.welcomed(self):
            self._say(proof)

    def _go_on_accepting(self, opening: Accepting, payload: bytes) -> None:
        if opening.hello is None:
            self._say(opening.welcome(payload))
            return
        self.rtt_s = time.perf_counter() - self._asked_at
        self.peer = opening.admit(payload, self._keeper.verify)
        self.host = self.wire.remote_host()
        self._enter(Stage.PROVED)
        self._keeper.proved(self)

    def _say(self, message: bytes) -> None:
        assert self._socket is not None
        self._asked_at = time.perf_counter()
        self._socket.send(_BINARY, message)

    def _write_queue(self) -> None:
        assert self._socket is not None
        queue, self._queue, self._queued_bytes = self._queue, [], 0
        if queue:
            for message in batches(queue, self._mac.tag, _FRAME_ROOM):
                self._socket.send_reuse_external_bytearray(_BINARY, message, _ROOM_BYTES)
        if self._is_paused:
            self._buffered_bytes = self._socket.underlying_transport.get_write_buffer_size()

    def _send_tagged(self, message: bytes) -> None:
        assert self._socket is not None
        self._socket.send(_BINARY, message + self._mac.tag(message))

    def _handle_echo(self, echo: bytes) -> None:
        """Answer an echo request, or take the answer to one of ours."""
        if len(echo) != _ECHO_BYTES:
            raise RemoteError("packet-length", f"an echo of {len(echo)} bytes")
        if echo.startswith(_REQUEST):
            self._send_tagged(_ANSWER + echo[len(_REQUEST) :])
            self._bound_answers()
        elif echo.startswith(_ANSWER):
            self._measured(echo[len(_ANSWER) :])
        else:
            raise RemoteError("packet-length", f"an echo of kind {echo[LENGTH_BYTES]}")

    def _bound_answers(self) -> None:
        """End the link of a peer that asks for echoes, does not read them and fills our memory."""
        assert self._socket is not None
        if self._socket.underlying_transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            self.finish("link-full", abort=True)

    def _measured(self, asked: bytes) -> None:
        """Sample the round trip of an echo; answers come in the order of the requests."""
        if asked not in self._asked:
            return  # it answers no request, or one that was answered before
        while self._asked.popleft() != asked:
            pass
        # The median: an echo that waited behind a burst says nothing about the next message, and
        # a mean would remember it for a minute. The handshake's estimate, with its signatures, is
        # forgotten at the first echo.
        self._samples.append((time.perf_counter_ns() - int.from_bytes(asked)) / 1e9)
        self.rtt_s = sorted(self._samples)[len(self._samples) // 2]
        self._keeper.owner.rtt(self.peer, self.rtt_s)


def _word(reason: bytes | None) -> str:
    """Read the other side's reason, if it is one word as we would say it."""
    if reason is None or not _WORD.fullmatch(reason):
        return "closed"
    return reason.decode()
