"""Those who change the registry while a run goes on: they grant, take back, edit, let expire.

They act through nodes, as applications do, and wherever their nodes are: where a partition lasts,
they change one stream at two trackers at once.
"""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from anabranch.core.changes import PUBLIC, Action, EditStream, Right, SetPermission
from anabranch.core.errors import LocalError
from anabranch.core.history import make_change
from anabranch.core.machine import Answered, Follow, Request
from anabranch.core.messages import WriteChange, Written
from anabranch.sim.network import SimNode
from anabranch.sim.trusted_cluster import BOTH, OWNERS, SECOND, TrustedCluster

AGAIN_S = 1.0
ATTEMPTS = 6
LAST_ATTEMPTS = 60
LASTS_S = (1.0, 20.0)  # of a permission that ends

READ = Right.SUBSCRIBE
RIGHTS = (BOTH, BOTH, READ, Right.PUBLISH, Right(0))


class _Task(msgspec.Struct):
    """A change that somebody wants made."""

    stream: str
    nodes: list[SimNode]  # through one of which he acts
    draw: Callable[[], list[Action]]
    attempts: int


class Administration:
    """Draws changes, has them signed by who may make them, and sends them to the registry."""

    def __init__(self, cluster: TrustedCluster, rng: random.Random, changes_per_s: float) -> None:
        self.counts: Counter[str] = Counter()
        self.undone: dict[str, None] = {}  # streams on which the last word has not been written
        self._cluster = cluster
        self._rng = rng
        self._per_s = changes_per_s
        self._until = 0.0
        self._over = False  # nothing but the last word is to be said
        self._ticket = 0
        self._asked: dict[int, _Task] = {}
        peers = cluster.peers
        self._owners = [peers[index] for index in OWNERS if index < len(peers)]
        self._all = [*self._owners, *peers[SECOND : SECOND + 1]]
        # Whose permissions change; the owner needs none.
        self._users = [u for u in map(cluster.user, peers) if u != cluster.owner.node]
        cluster.applications.heard = self._heard

    def start(self, until: float) -> None:
        """Begin, and go on until then."""
        self._until = until
        if self._per_s:
            self._next()

    def settle(self) -> None:
        """Have the last word on every stream, so that much of what may be is also done."""
        self._over = True
        self.undone = dict.fromkeys(self._cluster.streams)
        for part in self._cluster.parts:
            self._try(_Task(part.stream, self._owners, self._last_word, LAST_ATTEMPTS))

    # --- What they want -------------------------------------------------------------------

    def _next(self) -> None:
        sim = self._cluster.sim
        at = sim.now + self._rng.expovariate(self._per_s)
        if at < self._until:
            sim.at(at, self._change_something)

    def _change_something(self) -> None:
        stream = self._rng.choice(self._cluster.parts).stream
        draw = self._rng.choice([self._one, self._one, self._batch, self._edit, self._public])
        self._try(_Task(stream, self._all, draw, ATTEMPTS))
        self._next()

    def _one(self) -> list[Action]:
        return [self._permission()]

    def _batch(self) -> list[Action]:
        return [self._permission() for _ in range(self._rng.randint(2, 6))]

    def _edit(self) -> list[Action]:
        degree = self._cluster.degree + self._rng.choice([0, 0, 1])
        return [EditStream(degree=degree, metadata=f"{self._rng.random()}")]

    def _public(self) -> list[Action]:
        return [SetPermission(PUBLIC, self._rng.choice([Right(0), READ, BOTH]))]

    def _last_word(self) -> list[Action]:
        actions: list[Action] = [EditStream(degree=self._cluster.degree)]
        for user in self._users:
            actions.append(SetPermission(user, self._rng.choice(RIGHTS)))
        return actions

    def _permission(self) -> Action:
        if not self._users:
            return SetPermission(PUBLIC, READ)
        expires_ms = 0
        if self._rng.random() < 0.3:
            expires_ms = int((self._cluster.sim.now + self._rng.uniform(*LASTS_S)) * 1000)
        return SetPermission(self._rng.choice(self._users), self._rng.choice(RIGHTS), expires_ms)

    # --- How they get it ------------------------------------------------------------------

    def _try(self, task: _Task) -> None:
        """Sign a change on top of what a node knows, and have it sent."""
        if self._over and task.draw != self._last_word:
            return
        task.attempts -= 1
        cluster, node = self._cluster, self._rng.choice(task.nodes)
        history = cluster.registries[node.id].history(task.stream)
        if not node.alive or not history.height:
            cluster.sim.tell(node, Follow(task.stream))
            self._later(task, "unreachable")
            return
        signer = cluster.users[node.id]
        try:
            change = make_change(signer, history, task.draw(), cluster.sim.now)
        except LocalError:  # he may not, or not any more
            self.counts["forbidden"] += 1
            return
        self._ticket += 1
        self._asked[self._ticket] = task
        cluster.sim.tell(node, Request(self._ticket, WriteChange(0, change)))

    def _heard(self, node: SimNode, answered: Answered) -> None:
        task = self._asked.pop(answered.ticket)
        written = answered.message
        if type(written) is Written and not written.problem:
            self.counts["written"] += 1
            if task.draw == self._last_word:
                self.undone.pop(task.stream, None)
        else:
            problem = written.problem if type(written) is Written else answered.problem
            self._later(task, problem.partition(":")[0])

    def _later(self, task: _Task, problem: str) -> None:
        """Try again in a while: somebody else was first, or the registry is out of reach."""
        self.counts[problem] += 1
        if task.attempts > 0:
            sim = self._cluster.sim
            sim.at(sim.now + AGAIN_S * (0.5 + self._rng.random()), partial(self._try, task))
