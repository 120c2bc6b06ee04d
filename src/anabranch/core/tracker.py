"""The Tracker: who is in which overlay, and whom each should have for neighbours.

Statuses and instructions carry counters (paper 001, section 4.3). The tracker adds one per node
and part with each instruction; a node echoes the counter of the last one it carried out; a status
with a lower counter is stale and says nothing about the present. A status that lacks an expected
neighbour means that the two could not connect: the pair is set apart for a while and both get
somebody else. Changes are gathered for a moment before they are sent, so that a storm of joins
costs each node few instructions.

Counter 0 is never stale: it is a node that has just started, perhaps again under the same name.
A node with a counter this tracker never gave comes from a former life of the tracker (or from
another one): the links it reports are taken over as they stand.

Nothing is believed of what a node says that would cost others more than their next neighbour: a
link counts if both ends report it, an address and a complaint count only so often, and who is not
admitted has no place at all.

The tracker keeps the graph of each part through `Topology` (tracked.py), so that another way of
choosing neighbours needs no other tracker.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from anabranch.core import codec
from anabranch.core.dial_checks import DialChecks
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    DialChecked,
    Disconnect,
    Effect,
    Event,
    LinkDown,
    LinkUp,
    Notice,
    Received,
    Send,
    Sizes,
    Wakeup,
)
from anabranch.core.messages import Contact, Leave, Listening, Probed, Refused, Report, Status
from anabranch.core.messages.tracker import MAX_COUNTER
from anabranch.core.overlay import Directory
from anabranch.core.timers import Timers
from anabranch.core.tracked import GATHER_S, MakeTopology, TrackedNode, TrackedPart, dials
from anabranch.core.tracker_view import (
    MAX_NODES_PER_PART,
    MAX_PARTS,
    MAX_PARTS_PER_NODE,
    TrackerView,
)

QUIET_S = 0.1  # instructions leave when nothing has changed for this long,
AT_MOST_S = 2.0  # or when the first change is this old
GATHER_AT_MOST_S = 10.0  # links are taken over, until everyone is back of whom others speak
ABSENT_S = 3.0  # how long a node may be without a link to us
SILENT_S = 35.0  # how long a node may say nothing: three statuses and a half
AGAIN_S = 4.0  # how long an instruction may go unanswered before it is sent again
MEND_EVERY_S = 10.0
IMPROVE_FIRST_S = 10.0  # when the first nodes of a part have their neighbours
MOVE_EVERY_S = 5.0  # how often a node may have another address
RESTARTS, RESTARTS_FOR_S = 5, 60.0  # how often one may be spared because it has restarted
COMPLAINTS, COMPLAINTS_FOR_S = 4, 20.0  # how often one is believed, times its degree: who is
# believed without end could choose its neighbours by refusing all others
COUNTED = ("statuses", "reports", "leaves", "instructions", "refusals", "faults", "probes")
UNPERMITTED = "unpermitted"

Admits = Callable[[StreamPart, NodeId, float], bool]  # whether a node may be in a part now
Users = Callable[[NodeId, float], NodeId | None]  # the user of a node, if it is known
_Timer = tuple[str, StreamPart | None, NodeId | None]


class Tracker(TrackerView):
    """A tracker's protocol machine."""

    wakeup_at: float | None = None

    def __init__(
        self,
        me: NodeId,
        directory: Directory,
        rng: random.Random,
        topologies: Mapping[str, MakeTopology],
        admits: Admits | None = None,
        users: Users = lambda node, now: node,
        checks: DialChecks | None = None,
    ) -> None:
        """Topologies are by the names of overlays; without `admits` everybody has a place.

        Without `checks` the nodes themselves have to know whether they can be dialled.
        """
        super().__init__()
        self.me = Contact(me)
        self._admits = admits
        self._users = users
        self._checks = checks
        self._directory = directory
        self._rng = rng
        self._topologies = topologies
        self.counts = dict.fromkeys(COUNTED, 0)  # since the tracker started
        self._timers: Timers[_Timer] = Timers()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done about it."""
        effects: list[Effect] = []
        if type(event) is Received:
            effects = self._received(event.sender, event.data, now)
        elif type(event) is Wakeup:
            effects = self._wake(now)
        elif type(event) is LinkUp:
            if self._checks is not None:
                self._checks.link(event.peer, event.host)
            self._timers.cancel(("absent", None, event.peer))
            for part in self._parts_of.get(event.peer, ()):
                node = self._parts[part].nodes[event.peer]
                node.sent_at = now - AGAIN_S  # what we said meanwhile was lost
                self._spare(node, now)  # it may have lost its neighbours as it lost us
        elif type(event) is LinkDown:
            if self._checks is not None:
                self._checks.gone(event.peer)
            if event.peer in self._parts_of:
                self._timers.set(("absent", None, event.peer), now + ABSENT_S)
        elif type(event) is DialChecked and self._checks is not None:
            effects = self._checks.checked(event, now)
        self._rearm()
        return effects

    def _rearm(self) -> None:
        checks_at = self._checks.wakeup_at if self._checks is not None else None
        times = [at for at in (self._timers.next_at, checks_at) if at is not None]
        self.wakeup_at = min(times, default=None)

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
        checks = self._checks.sizes() if self._checks is not None else {}
        return {**super().sizes(), **checks}

    def review(self, stream: str, now: float) -> list[Effect]:
        """Look again at the parts of a stream: their degree, and who may be in them."""
        effects: list[Effect] = []
        for state in [s for part, s in self._parts.items() if part.stream == stream]:
            for node in list(state.nodes):
                if self._admits is not None and not self._admits(state.part, node, now):
                    effects += self._refuse(state.part, node, now)
            settings = self._directory(state.part)
            if settings is not None and settings.degree != state.degree and state.nodes:
                self._owe(state, state.resize(settings.degree, self._rng), now)
        self._rearm()
        return effects

    # --- Statuses -------------------------------------------------------------------------

    def _received(self, sender: NodeId, data: bytes, now: float) -> list[Effect]:
        try:
            message = codec.decode(data)
            if type(message) is Status:
                return self._status(sender, message, now)
            if type(message) is Report:
                self._report(sender, message, now)
            elif type(message) is Probed:
                self._probed(sender, message, now)
            elif type(message) is Leave:
                self._leave(sender, message, now)
            elif type(message) is Listening:
                checks = self._checks
                return checks.listening(sender, message.address, now) if checks is not None else []
            else:
                raise RemoteError("not-for-trackers", type(message).__name__)
        except RemoteError as error:
            self.counts["faults"] += 1
            self._remove_everywhere(sender, now)
            fault = Notice(None, "fault", f"{error.reason} from {sender.hex()}")
            return [fault, Disconnect(sender, error.reason)]
        return []

    def _status(self, sender: NodeId, status: Status, now: float) -> list[Effect]:
        self.counts["statuses"] += 1
        if status.counter > MAX_COUNTER:
            raise RemoteError("counter", str(status.counter))
        if self._admits is not None and not self._admits(status.part, sender, now):
            return self._refuse(status.part, sender, now)
        state = self._part(status.part, now)
        if state is not None:
            self._heard(state, sender, status, now)
        return []

    def _refuse(self, part: StreamPart, node: NodeId, now: float) -> list[Effect]:
        """Give a node no place, and take the one it has."""
        self.counts["refusals"] += 1
        self._remove(part, node, now)
        return [Send(node, Refused(part, UNPERMITTED))]

    def _heard(self, state: TrackedPart, sender: NodeId, status: Status, now: float) -> None:
        node = state.nodes.get(sender)
        if node is None and not state.may_return(sender, now):
            return
        self._timers.set(("silent", status.part, sender), now + SILENT_S)
        self._timers.cancel(("absent", None, sender))
        if node is None:
            self._welcome(state, sender, status, now)
            return
        node.heard_at, node.user = now, self._users(sender, now) or sender
        moved = (status.address, status.dialable) != (node.address, node.dialable)
        if moved and now >= node.moved_at + MOVE_EVERY_S:
            told = state.move(sender, status.address, status.dialable, now)
            self._tell_again(state, told, now)
            if not status.dialable:
                self._excuse(state, sender, now)
        if status.counter == 0 or status.counter > node.counter:
            # It restarted, or it was instructed by somebody else: what it was told is void.
            if status.counter:
                node.counter, node.sent_at = status.counter, 0.0
            self._spare(node, now)
            state.disputes.annul(sender)
            self._tell_again(state, [sender], now)
        elif status.counter < node.counter:
            # Stale, unless our instruction was lost on the way.
            if node.sent_at <= now - AGAIN_S:
                self._tell_again(state, [sender], now)
        else:
            node.reported, node.rtts_us = status.neighbours, status.rtts_us
            state.learn(sender, now)
            self._compare(state, sender, status, now)

    def _spare(self, node: TrackedNode, now: float) -> None:
        """Give a node a moment before others may complain of it, but not for ever."""
        if node.restarts.again(RESTARTS_FOR_S, now) <= RESTARTS:
            node.restarted_at = now

    def _welcome(self, state: TrackedPart, sender: NodeId, status: Status, now: float) -> None:
        of_node = self._parts_of.get(sender, {})
        if len(of_node) >= MAX_PARTS_PER_NODE or len(state.nodes) >= MAX_NODES_PER_PART:
            if not state.nodes:
                del self._parts[state.part]
            raise RemoteError("too-many", f"{len(of_node)} parts, {len(state.nodes)} nodes")
        self._parts_of.setdefault(sender, of_node)[state.part] = None
        # What it reports stands for what it was told, so that nothing need be said if it may stay.
        told = tuple(sorted(status.neighbours)) if status.counter else None
        state.nodes[sender] = TrackedNode(
            status.counter,
            status.address,
            self._users(sender, now) or sender,
            status.neighbours,
            status.rtts_us,
            told,
            heard_at=now,
            dialable=status.dialable,
        )
        if status.counter and not state.gathering and now < state.began_at + GATHER_S:
            state.gathering = True
            self._timers.set(("gather", state.part, None), now + GATHER_S)
        if status.counter or state.gathering:
            # It has been in this overlay before: take over the links that both ends report.
            changed = state.take_over(sender)
            if not state.gathering:
                changed += state.graph.complete()
        else:
            changed = state.graph.join(sender)
            # It may have left a moment ago, and be back at another address.
            back = [p for p in changed if sender in (state.nodes[p].instructed or ())]
            self._tell_again(state, back, now)
        self._owe(state, [*changed, sender], now)

    def _report(self, sender: NodeId, report: Report, now: float) -> None:
        """Keep a node's last account of a part; from one that is not in it, it says nothing."""
        self.counts["reports"] += 1
        node = self.nodes(report.part).get(sender)
        if node is not None:
            node.report, node.report_at = report, now

    def _probed(self, sender: NodeId, message: Probed, now: float) -> None:
        """Take the answer to a probe, if it is of a graph that asks for any."""
        state = self._parts.get(message.part)
        if state is not None and state.improving is not None and sender in state.nodes:
            state.improving.probed(sender, message.node, message.rtt_us, now)

    def _compare(self, state: TrackedPart, sender: NodeId, status: Status, now: float) -> None:
        """Hold what a node has against what it was told."""
        node = state.nodes[sender]
        settled = node.restarted_at <= now - AGAIN_S
        replaceable = len(state.nodes) > state.degree + 1  # else nobody could take its place
        for peer in node.instructed or ():
            if peer in status.neighbours or peer not in state.graph.neighbours(sender):
                continue
            if ("absent", None, peer) in self._timers:
                self._remove_everywhere(peer, now)
                continue
            is_new = self._doubt(state, sender, peer, now)
            if not state.can_connect(sender, peer):
                self._owe(state, state.graph.cut(sender, peer), now)
            elif replaceable and settled and state.nodes[peer].restarted_at <= now - AGAIN_S:
                if node.complaints.again(COMPLAINTS_FOR_S, now) <= COMPLAINTS * state.degree:
                    part = state.separate if is_new else state.dispute
                    self._owe(state, part(sender, peer, now), now)
                    self._timers.sooner(("mend", state.part, None), now + MEND_EVERY_S)
            elif not replaceable and node.sent_at <= now - MEND_EVERY_S:
                # It may have taken the same counter of another tracker for ours: say it anew.
                self._tell_again(state, [sender], now)
        if any(peer not in (node.instructed or ()) for peer in status.neighbours):
            self._tell_again(state, [sender], now)

    def _excuse(self, state: TrackedPart, node: NodeId, now: float) -> None:
        """Place a node again that could not be dialled, where this tracker has seen it as well."""
        has_failed = self._checks is not None and self._checks.has_failed(node)
        if has_failed and state.disputes.excuse(node, now):
            self._owe(state, state.graph.complete(), now)

    def _doubt(self, state: TrackedPart, a: NodeId, b: NodeId, now: float) -> bool:
        """Check the node that one of two was told to dial; True if that is its first check."""
        if self._checks is None:
            return False
        dialled = b if dials(a, state.nodes[a], b, state.nodes[b]) else a
        self._checks.doubt(dialled, now)
        return self._checks.is_new(dialled)

    def _part(self, part: StreamPart, now: float) -> TrackedPart | None:
        state = self._parts.get(part)
        if state is None:
            settings = self._directory(part)
            if settings is None or len(self._parts) >= MAX_PARTS:
                return None
            make = self._topologies.get(settings.overlay)
            if make is None:  # an overlay that needs no tracker
                return None
            state = self._parts[part] = TrackedPart(part, settings.degree, self._rng, make)
            state.began_at = now
            if state.improving is not None:
                self._timers.set(("improve", part, None), now + IMPROVE_FIRST_S)
        return state

    # --- Leaving --------------------------------------------------------------------------

    def _leave(self, sender: NodeId, message: Leave, now: float) -> None:
        self.counts["leaves"] += 1
        state = self._parts.get(message.part)
        if state is not None and sender in state.nodes:
            state.note_leaving(sender, now)
            self._remove(message.part, sender, now)

    def _remove(self, part: StreamPart, node: NodeId, now: float) -> None:
        state = self._parts.get(part)
        if state is None or node not in state.nodes:
            return
        del state.nodes[node], self._parts_of[node][part]
        if not self._parts_of[node]:
            del self._parts_of[node]
        state.owed.pop(node, None)
        state.disputes.annul(node)
        self._timers.cancel(("silent", part, node))
        self._owe(state, state.graph.leave(node), now)
        if not state.nodes:
            for timer in ("flush", "gather", "mend", "improve"):
                self._timers.cancel((timer, part, None))
            del self._parts[part]

    def _remove_everywhere(self, node: NodeId, now: float) -> None:
        self._timers.cancel(("absent", None, node))
        for part in list(self._parts_of.get(node, ())):
            state = self._parts[part]
            state.disputes.end_since(node, state.nodes[node].heard_at)  # it was silent since
            self._remove(part, node, now)

    # --- Instructions ---------------------------------------------------------------------

    def _owe(self, state: TrackedPart, nodes: Sequence[NodeId], now: float) -> None:
        """Note that nodes are owed an instruction, and when it is to leave."""
        if not nodes:
            return
        state.owed |= dict.fromkeys(nodes)
        if state.first_change_at is None:
            state.first_change_at = now
        at = min(now + QUIET_S, state.first_change_at + AT_MOST_S)
        self._timers.set(("flush", state.part, None), at)
        self._timers.sooner(("mend", state.part, None), now + MEND_EVERY_S)

    def _tell_again(self, state: TrackedPart, nodes: Sequence[NodeId], now: float) -> None:
        """Owe nodes an instruction, even one that says what the last one said."""
        for node in nodes:
            state.nodes[node].instructed = None
        self._owe(state, nodes, now)

    def _flush(self, state: TrackedPart, now: float) -> list[Effect]:
        state.first_change_at = None
        if state.gathering:
            return []
        told = state.instruct(now)
        self.counts["instructions"] += len(told)
        return [Send(node, instruction) for node, instruction in told]

    # --- Time -----------------------------------------------------------------------------

    def _wake(self, now: float) -> list[Effect]:
        effects = self._checks.wake(now) if self._checks is not None else []
        for kind, part, node in self._timers.pop_due(now):
            if kind == "absent" and node is not None:
                self._remove_everywhere(node, now)
                continue
            state = self._parts.get(part) if part is not None else None
            if state is None:
                continue
            if kind == "silent" and node is not None:
                self._remove(state.part, node, now)
            elif kind == "flush":
                effects += self._flush(state, now)
            elif kind == "gather" and state.awaits() and now < state.began_at + GATHER_AT_MOST_S:
                self._timers.set((kind, part, None), now + GATHER_S / 2)
            elif kind == "gather":
                state.gathering = False
                state.graph.complete()
                self._owe(state, list(state.nodes), now)
            elif kind == "mend":
                self._mend(state, now)
            elif kind == "improve":
                effects += self._improve(state, now)
        return effects

    def _improve(self, state: TrackedPart, now: float) -> list[Effect]:
        """Let the graph improve by a round, and ask for what it wants to know."""
        done, probes = state.improve(now)
        self.counts["probes"] += len(probes)
        self._timers.set(("improve", state.part, None), now + done.every_s)
        self._owe(state, done.changed, now)
        return [Send(node, probe) for node, probe in probes]

    def _mend(self, state: TrackedPart, now: float) -> None:
        """Forgive old pairs, fill slots that stayed open, and join an overlay that has split."""
        state.disputes.forgive(now)
        changed = [*state.graph.complete(), *state.graph.mend()]
        if (due_at := state.disputes.due_at) is not None:
            self._timers.sooner(("mend", state.part, None), max(due_at, now + MEND_EVERY_S))
        self._owe(state, changed, now)
