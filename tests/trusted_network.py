"""A small simulated network with a registry, for tests that look at it from outside."""

from collections import Counter
from typing import Any

from anabranch.core.changes import Action, Right, SetPermission
from anabranch.core.history import make_change
from anabranch.core.ids import NodeId
from anabranch.core.machine import Answered, Deliver, Notice, Request
from anabranch.core.messages import WriteChange, Written
from anabranch.sim.network import Constant, Observer, SimNode
from anabranch.sim.simulator import Simulator
from anabranch.sim.trusted_cluster import OWNERS, TrustedCluster


class Seen(Observer):
    """What nodes delivered, and what they had to say."""

    def __init__(self) -> None:
        self.deliveries: Counter[NodeId] = Counter()
        self.notices: list[tuple[NodeId, Notice]] = []

    def handed(self, node: SimNode, deliver: Deliver, now: float) -> None:
        self.deliveries[node.id] += 1

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        self.notices.append((node.id, notice))

    def faults(self) -> Counter[str]:
        """Count why links were cut."""
        kinds = [n.detail.split()[0] for _, n in self.notices if n.kind == "fault"]
        return Counter(kinds)


class TrustedNetwork:
    """Nodes and their users, one private stream; nobody but the owner has rights yet."""

    def __init__(self, nodes: int = 6, trackers: int = 2, **options: Any) -> None:
        self.sim = Simulator(Constant(5), 1)
        self.cluster = TrustedCluster(self.sim, 1, nodes, trackers=trackers, **options)
        self.sim.observer = self.seen = Seen()
        self.part = self.cluster.parts[0]
        self.owner = self.cluster.peers[OWNERS[0]]
        self.answers: list[Answered] = []
        self.cluster.applications.heard = lambda node, answered: self.answers.append(answered)
        for node in self.cluster.peers:
            self.cluster.subscribe(node, self.part)
        self.wait(3)
        self.others = [n for n in self.cluster.peers if self.user(n) != self.user(self.owner)]
        self.one, self.two, *_ = self.others
        self.write(*(SetPermission(self.user(node), 0) for node in self.others))

    def user(self, node: SimNode) -> NodeId:
        """Return for whom a node acts."""
        return self.cluster.user(node)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.sim.run(self.sim.now + seconds)

    def write(self, *actions: Action) -> None:
        """Have the owner change the stream."""
        history = self.cluster.history(self.owner, self.part.stream)
        change = make_change(self.cluster.owner, history, actions, self.sim.now)
        self.sim.tell(self.owner, Request(1, WriteChange(0, change)))
        self.wait(4)
        answer = self.answers.pop().message
        assert isinstance(answer, Written)
        assert answer.problem == ""

    def permit(self, node: SimNode, rights: Right, expires_at: float = 0.0) -> None:
        """Have the owner say what a node's user may do."""
        self.write(SetPermission(self.user(node), rights, int(expires_at * 1000)))

    def publish(self, node: SimNode) -> dict[NodeId, int]:
        """Let a node publish; return who got it, and how often."""
        self.seen.deliveries.clear()
        self.cluster.publish(node, self.part, [b"a message that few may read"])
        self.wait(4)
        return dict(self.seen.deliveries)

    def owners(self) -> dict[NodeId, int]:
        """The nodes that act for the owner, each with one message."""
        return {self.cluster.peers[index].id: 1 for index in OWNERS}

    def heads(self) -> set[bytes]:
        """Return the heads that honest nodes have of the stream."""
        return {self.cluster.history(n, self.part.stream).head for n in self.cluster.honest}
