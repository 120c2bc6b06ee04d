"""One WebSocket between two nodes, whoever dialled: it opens, it is a Link, it ends.

What is queued within one turn of the loop leaves in one write. Silence and patience are counted
in ticks of the transport's one timer, not read from a clock: a process that stood still for a
while comes back to one tick, and does not take everybody else for dead.

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
from anabranch.core.handshake import Accepting, Dialling, Ready, encode
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId
from anabranch.core.packets import Packets
from anabranch.live.transports import LinkOwner
from anabranch.live.transports.batches import LENGTH_BYTES, LENGTHS, batches, packets, without
from anabranch.live.transports.timing import Timing

if TYPE_CHECKING:
    from anabranch.live.transports.dials import Dial
    from anabranch.live.transports.wire import Wire

HIGH_MARK_BYTES = 1024 * 1024
LOW_MARK_BYTES = 256 * 1024
MAX_QUEUED_BYTES = 16 * 1024 * 1024  # a link that waits with more is cut
SAMPLES = 7  # of the round trip, of which the median counts
MAX_REASON_BYTES = 123  # what a close frame has room for

_ROOM_BYTES = 14  # picows writes a WebSocket frame's head here, in front of the batch
_FRAME_ROOM = bytes(_ROOM_BYTES)
_WORD = re.compile(rb"[a-z][a-z-]{0,31}")
_BINARY, _TEXT = WSMsgType.BINARY, WSMsgType.TEXT
_PING, _PONG, _CLOSE = WSMsgType.PING, WSMsgType.PONG, WSMsgType.CLOSE


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
        *("_asked_at", "_buffered_bytes", "_flush_due", "_full", "_is_paused", "_keeper", "_loop"),
        *("_opening", "_ping", "_queue", "_queued_bytes", "_samples", "_silent_ticks", "_socket"),
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
        self._ping = b""  # the one that is not answered yet
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
        self._say(encode(Ready()))

    def begin(self) -> None:
        """Be a link from now on."""
        self._enter(Stage.UP)

    def flush(self) -> None:
        """Write what waits."""
        self._flush_due = False
        if self.stage is not _UP:
            return
        queue = self._queue
        if len(queue) == 1 and len(queue[0]) < len(LENGTHS):  # as nearly always
            assert self._socket is not None
            self._queue, self._queued_bytes = [], 0
            batch = bytearray().join((_FRAME_ROOM, LENGTHS[len(queue[0])], queue[0]))
            self._socket.send_reuse_external_bytearray(_BINARY, batch, _ROOM_BYTES)
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
        if self.stage is _UP and self._socket is not None:
            self._ping = time.perf_counter_ns().to_bytes(8)
            self._socket.send_ping(self._ping)

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
                not self._ping
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
        self._silent_ticks = 0
        try:
            if kind == _BINARY and frame.fin:
                if self.stage is _UP:
                    batch = frame.get_payload_as_bytes()
                    end = len(batch)
                    is_one = LENGTH_BYTES < end < len(LENGTHS) and batch.startswith(
                        LENGTHS[end - LENGTH_BYTES]
                    )  # as nearly always
                    came = Packets(batch, (LENGTH_BYTES, end)) if is_one else packets(batch)
                    self._keeper.owner.received(self.peer, came)
                else:
                    self._open(frame.get_payload_as_bytes())
            elif kind == _PING:
                self._echo(transport, frame.get_payload_as_bytes())
            elif kind == _PONG:
                self._hear_echo(frame.get_payload_as_bytes())
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
        for batch in batches(queue, _FRAME_ROOM):
            self._socket.send_reuse_external_bytearray(_BINARY, batch, _ROOM_BYTES)
        if self._is_paused:
            self._buffered_bytes = self._socket.underlying_transport.get_write_buffer_size()

    def _echo(self, transport: WSTransport, payload: bytes) -> None:
        transport.send_pong(payload)
        # Who pings and never reads would otherwise fill our memory with echoes.
        if transport.underlying_transport.get_write_buffer_size() > MAX_QUEUED_BYTES:
            self.finish("link-full", abort=True)

    def _hear_echo(self, payload: bytes) -> None:
        if self.stage is not _UP or not self._ping or payload != self._ping:
            return  # of an older ping, or of none
        sample = (time.perf_counter_ns() - int.from_bytes(payload)) / 1e9
        self._ping = b""
        # The median: an echo that waited behind a burst says nothing about the next message, and
        # a mean would remember it for a minute. The handshake's estimate, with its signatures, is
        # forgotten at the first echo.
        self._samples.append(sample)
        self.rtt_s = sorted(self._samples)[len(self._samples) // 2]
        self._keeper.owner.rtt(self.peer, self.rtt_s)


def _word(reason: bytes | None) -> str:
    """Read the other side's reason, if it is one word as we would say it."""
    if reason is None or not _WORD.fullmatch(reason):
        return "closed"
    return reason.decode()
