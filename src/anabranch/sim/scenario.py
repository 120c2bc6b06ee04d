"""Scenarios: a network, a workload and its faults, read from TOML and run from a seed.

A run has four phases. The nodes join; the workload runs while the faults happen; everything
heals and settles; then every live node publishes again, and all of it must arrive.
"""

import random
import tomllib
from collections.abc import Callable, Container, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId, StreamPart, part_key
from anabranch.core.machine import Draft
from anabranch.overlays import OVERLAYS
from anabranch.sim.administration import Administration
from anabranch.sim.byzantine import BYZANTINE
from anabranch.sim.checkers import Checker, reachable
from anabranch.sim.cluster import Cluster
from anabranch.sim.faithless import FAITHLESS
from anabranch.sim.faults import Faults, Mishaps
from anabranch.sim.lying_trackers import LYING
from anabranch.sim.network import Constant, Plane, SimNode, Underlay
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.storage_checker import StorageChecker
from anabranch.sim.stored_cluster import StoredCluster
from anabranch.sim.trust_checker import TrustChecker
from anabranch.sim.trusted_cluster import TrustedCluster
from anabranch.traces.recorder import Recorder

MAX_NODES = 10_000
ROUNDS_WITH_LIARS = 5
KEYS_COME_S = 10.0
HISTORY_COMES_S = 30.0
STEP_S = 1.0  # how often bounds are checked and progress is shown

MakeUnderlay = Callable[["Scenario", random.Random], Underlay]
Progress = Callable[[float], None]  # how much of the simulated time has passed, from 0 to 1


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All options of a run, each with its meaning."""

    name: str = "unnamed"
    about: str = ""
    nodes: int = 24
    parts: int = 1
    trackers: int = 1
    overlay: str = "random-regular"
    degree: int = 4
    underlay: str = "plane"
    base_ms: float = 1.0  # of the underlay: what every packet takes at least
    across_ms: float = 20.0  # what it takes, besides, from one side to the other
    join_over_s: float = 1.0
    run_for_s: float = 20.0  # the workload and the faults
    settle_for_s: float = 100.0  # after the faults, before liveness is checked
    publishers: int = 4
    subscribers: int = 0  # of the nodes, the others only publish; 0 is all of them
    messages_per_s: float = 2.0  # of each publisher
    messages_at_once: int = 1
    message_bytes: int = 308
    faults: Faults = Faults()
    byzantine: dict[str, int] = {}  # kind: how many of the nodes
    crash_at_s: tuple[float, ...] = ()  # kill a node that does not publish
    tracker_crash_at_s: tuple[float, ...] = ()
    real_keys: bool = False
    registry: bool = False  # users, permissions, and trackers that keep them; the next need it
    private: int = 0  # of the parts: these are encrypted, and read by who was told that he may
    changes_per_s: float = 0.0  # of the registry: permissions given and taken, streams edited
    lying_trackers: dict[str, int] = {}  # kind: how many of the trackers
    storage: int = 0  # storage nodes, that keep every part; then all nodes read in order,
    copies: int = 0  # and publishers ask that so many storage nodes hold each message


UNDERLAYS: dict[str, MakeUnderlay] = {
    "constant": lambda s, rng: Constant(s.base_ms + s.across_ms),
    "plane": lambda s, rng: Plane(s.nodes + s.trackers + s.storage, s.base_ms, s.across_ms, rng),
}


def builtin_names() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    folder = resources.files("anabranch.sim") / "scenarios"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str) -> Scenario:
    """Read a scenario from a file, or by name one that comes with the package."""
    path = Path(name)
    if path.is_file():
        text = path.read_text()
    elif name in builtin_names():
        text = (resources.files("anabranch.sim") / "scenarios" / f"{name}.toml").read_text()
    else:
        known = ", ".join(builtin_names())
        raise LocalError(f"no scenario {name!r}: give a TOML file, or one of {known}")
    try:
        return check(msgspec.convert(tomllib.loads(text), Scenario))
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise LocalError(f"scenario {name}: {error}") from error


def check(scenario: Scenario, underlays: Mapping[str, MakeUnderlay] | None = None) -> Scenario:
    """Refuse options that cannot be run, saying which."""
    s = scenario
    kinds = [*BYZANTINE, *(FAITHLESS if s.registry else ())]
    trust = s.private or s.changes_per_s or s.lying_trackers
    limits = [
        (1 <= s.nodes <= MAX_NODES, f"nodes is {s.nodes}: from 1 to {MAX_NODES}"),
        (1 <= s.parts <= 100, f"parts is {s.parts}: from 1 to 100"),
        (1 <= s.trackers <= 10, f"trackers is {s.trackers}: from 1 to 10"),
        (2 <= s.degree <= 32, f"degree is {s.degree}: from 2 to 32"),
        (s.overlay in OVERLAYS, f"overlay is {s.overlay!r}: one of {', '.join(OVERLAYS)}"),
        (0 <= s.publishers <= s.nodes, f"publishers is {s.publishers}: at most nodes"),
        (0 <= s.subscribers <= s.nodes, f"subscribers is {s.subscribers}: at most nodes"),
        (
            not s.crash_at_s or s.publishers < s.nodes,
            "crash_at_s kills nodes that do not publish: let publishers be fewer than nodes",
        ),
        (s.messages_per_s > 0, "messages_per_s must be above 0"),
        (1 <= s.messages_at_once <= 256, "messages_at_once: from 1 to 256"),
        (0 <= s.message_bytes <= 65_536, "message_bytes: from 0 to 65536"),
        (0 < s.run_for_s <= 86_400, "run_for_s: above 0, at most a day"),
        (set(s.byzantine) <= set(kinds), f"byzantine: kinds are {', '.join(kinds)}"),
        (sum(s.byzantine.values()) < s.nodes, "byzantine: some node must be honest"),
        (s.registry or not trust, "private, changes_per_s and lying_trackers need registry = true"),
        (0 <= s.private <= s.parts, f"private is {s.private}: at most parts"),
        (s.changes_per_s >= 0, "changes_per_s: 0 or more"),
        (set(s.lying_trackers) <= set(LYING), f"lying_trackers: kinds are {', '.join(LYING)}"),
        (0 <= s.storage <= 16, f"storage is {s.storage}: from 0 to 16"),
        (0 <= s.copies <= s.storage, f"copies is {s.copies}: at most storage"),
        (not (s.storage and s.registry), "storage and registry: leave one of them out"),
        (
            sum(s.lying_trackers.values()) < s.trackers,
            "lying_trackers: some tracker must be honest",
        ),
        (
            underlays is None or s.underlay in underlays,
            f"underlay is {s.underlay!r}: one of {', '.join(underlays or ())}",
        ),
    ]
    for holds, text in limits:
        if not holds:
            raise LocalError(f"scenario {s.name}: {text}")
    return s


def is_calm(scenario: Scenario) -> bool:
    """Tell whether nothing goes wrong in a scenario."""
    s = scenario
    kills = s.crash_at_s or s.tracker_crash_at_s
    return s.faults == Faults() and not (s.byzantine or s.lying_trackers or kills)


class Run:
    """One run of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int | str,
        recorder: Recorder | None = None,
        underlays: Mapping[str, MakeUnderlay] = UNDERLAYS,
        progress: Progress = lambda done: None,
    ) -> None:
        self.scenario = check(scenario, underlays)
        self.seed = seed
        self._rng = random.Random(f"{seed}/scenario")
        underlay = underlays[scenario.underlay](scenario, random.Random(f"{seed}/underlay"))
        self.sim = Simulator(underlay, seed, recorder)
        self.sim.watches_closely = is_calm(scenario) and not scenario.registry
        self.cluster = self._build()
        if recorder is not None:
            for part in self.cluster.parts:
                recorder.name_part(part)
        self.checker, self.administration = self._watch_over()
        if self.sim.watches_closely:
            self.checker.watch_calm()
        self.sim.observer = self.checker
        self.mishaps = Mishaps(self.cluster, self.checker, scenario.faults, self._rng)
        self.lost_at_unbroken = 0
        self._progress = progress
        self._ticket = 0
        self._all_honest = not scenario.byzantine and not scenario.lying_trackers

    def go(self) -> "Run":
        """Run all four phases."""
        s = self.scenario
        self.checker.strict_noise = s.faults == Faults() and not s.byzantine
        self._join()
        self._pass(s.join_over_s + 4.0)
        until = self.sim.now + s.run_for_s
        self._start_workload(until)
        self.mishaps.start(until)
        self._start_kills()
        if self.administration is not None:
            self.administration.start(until)
        self._pass(s.run_for_s)
        self.cluster.snapshot()
        self.mishaps.heal()
        if self.administration is not None:
            self.administration.settle()
        self._let_all_publish()  # who does not subscribe becomes a member by publishing
        self._pass(s.settle_for_s)
        self.cluster.snapshot()
        honest = {node.id for node in self.cluster.honest}
        self.lost_at_unbroken = self.due_and_lost(honest)[1]
        self._check_liveness()
        if isinstance(self.checker, StorageChecker):
            reads = self.checker.read_all()
            self._pass(HISTORY_COMES_S)
            self.checker.check_reads(reads)
            self.checker.complete(self.mishaps.unbroken)
        self.checker.bounds()
        return self

    # --- Who takes part -------------------------------------------------------------------

    def _build(self) -> Cluster:
        s = self.scenario
        options = (self.sim, self.seed, s.nodes, s.parts, s.trackers, s.overlay, s.degree)
        disguises = self._disguises()
        if s.storage:
            return StoredCluster(*options, s.real_keys, disguises, s.storage, s.copies)
        if not s.registry:
            return Cluster(*options, s.real_keys, disguises)
        return TrustedCluster(*options, s.real_keys, disguises, s.private, self._liars())

    def _disguises(self) -> dict[int, str]:
        """Choose which nodes misbehave, and how; the first nodes publish, so take the last."""
        kinds = _each(self.scenario.byzantine)
        return {self.scenario.nodes - 1 - i: kind for i, kind in enumerate(kinds)}

    def _liars(self) -> dict[int, str]:
        """Choose which trackers lie, and how."""
        kinds = _each(self.scenario.lying_trackers)
        places = range(self.scenario.trackers)
        chosen = random.Random(f"{self.seed}/liars").sample(places, len(kinds))
        return dict(zip(chosen, kinds, strict=True))

    def _watch_over(self) -> tuple[Checker, Administration | None]:
        cluster, s = self.cluster, self.scenario
        if isinstance(cluster, StoredCluster):
            return StorageChecker(cluster, s.overlay), None
        if not isinstance(cluster, TrustedCluster):
            return Checker(cluster, s.overlay), None
        rng = random.Random(f"{self.seed}/administration")
        return TrustChecker(cluster, s.overlay), Administration(cluster, rng, s.changes_per_s)

    # --- Phases ---------------------------------------------------------------------------

    def _join(self) -> None:
        s = self.scenario
        subscribers = s.subscribers or s.nodes
        for index, node in enumerate(self.cluster.peers):
            for part in self.cluster.parts:
                # The last ones subscribe, so that with few subscribers publishers only publish.
                subscribes = index >= s.nodes - subscribers
                at = self.sim.now + self._rng.random() * s.join_over_s
                self.sim.at(at, partial(self.mishaps.join, node, part, subscribes))

    def _start_workload(self, until: float) -> None:
        s = self.scenario
        for node in self.cluster.peers[: s.publishers]:
            for part in self.cluster.parts:
                self._publish_again(node, part, until)

    def _publish_again(self, node: SimNode, part: StreamPart, until: float) -> None:
        at = self.sim.now + self._rng.expovariate(self.scenario.messages_per_s)
        if at < until:
            self.sim.at(at, partial(self._publish_one, node, part, until))

    def _publish_one(self, node: SimNode, part: StreamPart, until: float) -> None:
        if part in self.mishaps.members.get(node.id, {}):
            self._publish(node, part, self.scenario.messages_at_once)
        self._publish_again(node, part, until)

    def _publish(self, node: SimNode, part: StreamPart, messages: int) -> None:
        drafts = []
        for _ in range(messages):
            self._ticket += 1
            drafts.append(Draft(self._rng.randbytes(self.scenario.message_bytes), 0, self._ticket))
        self.cluster.offer(node, part, drafts)

    def _let_all_publish(self) -> None:
        for node in self.cluster.peers:
            for part in self.cluster.parts:
                self._publish(node, part, 1 + self._rng.randrange(3))

    def _start_kills(self) -> None:
        quiet = self.cluster.peers[self.scenario.publishers :]
        for after_s in self.scenario.crash_at_s:
            victim = self._rng.choice(quiet)
            self.sim.at(self.sim.now + after_s, partial(self.mishaps.crash, victim, False))
        for after_s in self.scenario.tracker_crash_at_s:
            tracker = self._rng.choice(self.cluster.trackers)
            self.sim.at(self.sim.now + after_s, partial(self.mishaps.crash_tracker, tracker))

    def _pass(self, seconds: float) -> None:
        """Let time pass, checking bounds on the way."""
        s = self.scenario
        total = s.join_over_s + s.run_for_s + s.settle_for_s + 14.0
        end = self.sim.now + seconds
        while self.sim.now < end:
            self.sim.run(min(end, self.sim.now + STEP_S))
            self.checker.bounds()
            self._progress(min(1.0, (self.sim.now - START_AT) / total))

    # --- Verdict --------------------------------------------------------------------------

    def _check_liveness(self) -> None:
        """After the faults: degrees, and every message of every live node to every subscriber."""
        cluster, checker = self.cluster, self.checker
        members = {part: cluster.members(part) for part in cluster.parts}
        if self._all_honest:
            for part in cluster.parts:
                checker.degrees(part, members[part])
            if self.administration is not None:
                for stream in self.administration.undone:
                    checker.complain(f"the last word on {stream} could not be written")
        checker.strict_noise = not self.scenario.byzantine
        checker.settled()
        # Trackers that lie can move nodes about just while messages are under way, and peers that
        # misbehave can lose requests for keys: neither can do so for ever.
        trusting = self.scenario.registry and not self._all_honest
        rounds = ROUNDS_WITH_LIARS if trusting else 1
        for left in reversed(range(rounds)):
            missing = self._publish_and_look(members)
            if not missing:
                break
            if not left:
                for text in missing:
                    checker.complain(text)
        checker.ended()

    def _publish_and_look(self, members: dict[StreamPart, list[SimNode]]) -> list[str]:
        """Let everybody publish; say what did not get where it could."""
        cluster, checker = self.cluster, self.checker
        reach = {part_key(p): reachable(cluster, p, nodes) for p, nodes in members.items()}
        before = len(checker.frames)
        self._let_all_publish()
        self._pass(KEYS_COME_S if self.scenario.registry else 5.0)
        names = list(checker.frames)[before:]
        return checker.mute(names, members) + checker.missing(names, reach)

    def due_and_lost(self, publishers: Container[NodeId]) -> tuple[int, int]:
        """Count deliveries of some publishers' frames to honest subscribers that always were there.

        Return how many there should be, and how many of them there were not.
        """
        honest, members = {node.id for node in self.cluster.honest}, self.mishaps.members
        readers = [n for n in self.mishaps.unbroken if n in honest and any(members[n].values())]
        due = lost = 0
        for name, (_, _, publisher, _) in self.checker.frames.items():
            if publisher in publishers:
                due += len(readers)
                lost += sum(name not in self.checker.has[node] for node in readers)
        return due, lost

    def report(self) -> dict[str, Any]:
        """Return what the run was and what it showed, in plain keys."""
        checker = self.checker
        delays = sorted(checker.delays_ms)

        def quantile(q: float) -> float:
            return round(delays[min(len(delays) - 1, int(q * len(delays)))], 3) if delays else 0.0

        deliveries = len(delays)
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "nodes": self.scenario.nodes,
            "frames_published": len(checker.frames),
            "deliveries": deliveries,
            "lost_at_nodes_alive_throughout": self.lost_at_unbroken,
            "delay_mean_ms": round(sum(delays) / deliveries, 3) if deliveries else 0.0,
            "delay_p50_ms": quantile(0.5),
            "delay_p99_ms": quantile(0.99),
            "hops_mean": round(sum(checker.hops) / deliveries, 3) if deliveries else 0.0,
            "duplicates_per_delivery": round(checker.received / deliveries - 1, 3)
            if deliveries
            else 0.0,
            **{name.replace(" ", "_"): many for name, many in self.mishaps.counts.items()},
            **checker.figures(),
            "outcomes": dict(sorted(checker.outcomes.items())),
            "events": self.sim.handled,
            "simulated_s": round(self.sim.now - START_AT, 3),
            "violations": checker.violations,
        }


def _each(kinds: Mapping[str, int]) -> list[str]:
    """Name a kind as often as there are of it."""
    return [kind for kind, many in sorted(kinds.items()) for _ in range(many)]
