"""Any sequence of events: a Peer never raises, keeps its bounds, and can always leave in peace.

The Peer runs the overlay that ships, whatever its tracker and its neighbours say and in whatever
order. A lawful driver keeps to what links can do; an unruly one does not even that.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import codec
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Congested,
    Connect,
    Deliver,
    Disconnect,
    Effect,
    Event,
    LinkDown,
    LinkUp,
    Outcome,
    Publish,
    Published,
    Received,
    Retire,
    Rtt,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
)
from anabranch.core.messages import (
    Bye,
    Contact,
    Control,
    Got,
    Instruction,
    Leave,
    Meet,
    SlowDown,
)
from anabranch.core.overlay import PartSettings
from anabranch.overlays import OVERLAYS
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    Chain,
    Hand,
    beyond,
    data,
    drafts,
    forged,
    head,
    leftovers,
    of,
    peer,
)

PARTS = [PART, OTHER]
TRACKERS = NODES[1:3]
PEERS = NODES[3:9]
SETTINGS = PartSettings("random-regular", 3, tuple(map(Contact, TRACKERS)))
WAITS_S = [0.01, 0.06, 0.5, 2.0, 5.0, 11.0, 30.0, 70.0]

# Every step is a word and two numbers that choose among what there is at that moment.
WORDS = [
    "rest",
    *("subscribe", "unsubscribe", "publish", "publish", "retire", "wait", "wait", "wait"),
    *("answer", "answer", "answer", "refuse", "link", "down", "rtt", "congested", "writable"),
    *("instruct", "instruct", "instruct", "meet", "meet", "meet", "bye", "slow", "stray"),
    *("data", "data", "data", "old", "forge", "garbage", "got", "got", "straight"),
]
Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.integers(0, 63), st.integers(0, 7)), min_size=20
)
KINDS: dict[str, Any] = {
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "retire": Retire,
    "rtt": lambda node: Rtt(node, 0.01),
    "down": lambda node: LinkDown(node, "reset"),
    "congested": Congested,
    "writable": Writable,
}


class Driver:
    """Feeds events to a Peer, does what it wants done, and keeps the books."""

    def __init__(self, lawful: bool = True) -> None:
        overlays: Any = OVERLAYS
        self.hand: Hand = peer({PART: SETTINGS, OTHER: SETTINGS}, overlays)
        self.lawful = lawful
        self.up: dict[NodeId, bool] = {}  # present while dialled or standing; whether it stands
        self.counter = 0
        self.chains = [Chain(SIGNERS[10], part) for part in PARTS]
        self.own = [Published(head(self.chains[0].frame()), b"")] * 2  # or no frame of ours at all
        self.frames: list[bytes] = []
        self.tickets = 0
        self.outcomes: list[int] = []
        self.delivered: list[bytes] = []
        self.seen: set[str] = set()  # what the example has reached

    def step(self, word: str, one: int, two: int) -> None:
        part, at = PARTS[one % 2], one // 2
        if word == "wait":
            self.perform(self.hand.wait(WAITS_S[two]))
        elif word in ("subscribe", "unsubscribe", "retire"):
            self.tell(KINDS[word](part))
        elif word == "publish":
            many = drafts(*range(self.tickets, self.tickets + two % 3))
            self.tickets += len(many)
            self.tell(Publish(part, many))
        elif word in ("answer", "refuse"):
            dialled = [p for p, stands in self.up.items() if not stands]
            if dialled:
                node = dialled[at % len(dialled)]
                self.tell(LinkUp(node) if word == "answer" else LinkDown(node, "refused"))
        elif word == "link":
            node = NODES[1:9][at % 8]
            if not self.lawful or not self.up.get(node):
                self.tell(LinkUp(node))
        elif word != "rest":
            self.from_a_link(word, one, two)
        self.look()

    def from_a_link(self, word: str, one: int, two: int) -> None:
        part, at = PARTS[one % 2], one // 2
        standing = [p for p, stands in self.up.items() if stands]
        if not self.lawful:
            standing = NODES[1:9]
        if word == "instruct":
            standing = [p for p in standing if p in TRACKERS]
            self.counter += (-1, 1, 1, 2)[two % 4]
        elif word not in ("down", "rtt", "garbage"):
            standing = [p for p in standing if p in PEERS]
        if not standing:
            return
        sender = standing[two % len(standing)]
        if word in KINDS:
            self.tell(KINDS[word](sender))
        elif word in ("data", "old", "forge", "straight"):
            if word == "data" or not self.frames:
                self.frames.append(self.chains[one % 2].frame(at=self.hand.now))
            frame = self.frames[-1 if word == "data" else at % len(self.frames)]
            route = b"\1" if word == "straight" else b"\2"
            self.tell(data(sender, forged(frame) if word == "forge" else frame, 1, route))
        elif word == "garbage":
            self.tell(Received(sender, bytes([1, at % 3, two])))
        else:
            chosen = [p for place, p in enumerate(PEERS) if at >> place & 1][:4]
            half = two % (len(chosen) + 1)
            own = self.own[-1 - at % 2]
            message: dict[str, Control] = {
                "instruct": Instruction(
                    part,
                    max(0, self.counter),
                    tuple(map(Contact, chosen[:half])),
                    (*chosen[half:],),
                ),
                "meet": Meet(part, bool(two & 1), (0, 5_000)[two >> 2]),
                "bye": Bye(part),
                "got": Got(part, own.head.chain, (own.head.last + (two == 7),)),
                "slow": SlowDown(part, 100),
                "stray": Leave(part),
            }
            self.tell(Received(sender, codec.encode(message[word])))

    def tell(self, event: Event) -> None:
        if type(event) is LinkUp:
            self.up[event.peer] = True
        elif type(event) is LinkDown:
            self.up.pop(event.peer, None)
        elif type(event) is Unsubscribe:
            self.delivered.clear()  # who subscribes again may see a message again
        self.perform(self.hand(event))

    def perform(self, effects: list[Effect]) -> None:
        self.outcomes += [outcome.ticket for outcome in of(Outcome, effects)]
        self.own += of(Published, effects)
        for deliver in of(Deliver, effects):
            assert deliver.frame not in self.delivered
            self.delivered.append(deliver.frame)
        for effect in effects:
            if type(effect) is Connect:
                assert not self.lawful or effect.peer not in self.up
                self.up.setdefault(effect.peer, False)
            elif type(effect) is Disconnect:
                assert not self.lawful or self.up[effect.peer]
                self.up.pop(effect.peer, None)

    def look(self) -> None:
        """Hold every table against its bound; note what has been reached."""
        machine = self.hand.machine
        assert beyond(machine) == {}
        for part in PARTS:
            neighbours = machine.neighbours(part)
            assert list(neighbours) == sorted(set(neighbours))
            assert not self.lawful or all(self.up.get(node) for node in neighbours)
            self.seen |= {"neighbours"} if neighbours else set()
        self.seen |= {name for name, (size, _) in machine.sizes().items() if size}

    def leave(self) -> None:
        """Leave everything, and let every dial that is under way come to nothing."""
        for part in PARTS:
            self.tell(Unsubscribe(part))
            self.tell(Retire(part))
        for node in [p for p, stands in self.up.items() if not stands]:
            self.tell(LinkDown(node, "refused"))
        self.perform(self.hand.wait(11))


def nothing_remains(driver: Driver) -> None:
    machine: Any = driver.hand.machine
    left = leftovers(machine)
    left.pop("bans", None)
    left.pop("neighbours that asked for pauses", None)  # a budget outlives the link
    assert left == {}
    assert (driver.up, machine.wakeup_at) == ({}, None)
    assert (len(machine._outgoing), machine._congestion.outboxes) == (0, {})
    for overlay in machine._parts.overlays.values():
        assert (overlay._members, overlay._rtts_us, len(overlay._timers)) == ({}, {}, 0)


BEGIN: list[Step] = [("subscribe", 0, 0), ("answer", 0, 0), ("instruct", 14, 1)]
MET: list[Step] = [*BEGIN, ("answer", 0, 0), ("meet", 0, 1), ("publish", 0, 1)]
BEGINNINGS: dict[str, list[Step]] = {  # by what they have reached when the rest begins
    "": [],
    "unconfirmed frames": [("publish", 0, 1)],
    "neighbours": MET,
    "upstreams": [*MET, ("data", 0, 0)],
    "waiting drafts": [*MET, ("slow", 0, 0), ("publish", 0, 1)],
    "outbox frames": [*MET, ("congested", 0, 0), ("publish", 0, 1)],
    "unheld links": [*MET, ("link", 14, 0)],
    "bans": [*MET, ("garbage", 0, 1)],
}


@pytest.mark.parametrize("reached", BEGINNINGS)
def test_any_sequence_leaves_nothing_behind(reached: str) -> None:
    @settings(max_examples=60)
    @given(STEPS)
    def play(steps: list[Step]) -> None:
        driver = Driver()
        for step in BEGINNINGS[reached]:
            driver.step(*step)
        assert not reached or reached in driver.seen
        for step in steps:
            driver.step(*step)
        driver.leave()
        assert sorted(driver.outcomes) == list(range(driver.tickets))
        nothing_remains(driver)

    play()


@settings(max_examples=200)
@given(STEPS)
def test_not_even_an_unruly_driver_makes_a_peer_raise(steps: list[Step]) -> None:
    driver = Driver(lawful=False)
    for step in [*BEGIN, *steps]:
        driver.step(*step)
    driver.leave()
    assert sorted(driver.outcomes) == list(range(driver.tickets))


@settings(max_examples=150)
@given(STEPS)
def test_there_is_nothing_to_do_before_the_timer(steps: list[Step]) -> None:
    driver = Driver()
    for step in [*BEGIN, *steps]:
        driver.step(*step)
        at = driver.hand.machine.wakeup_at
        if at is None or at > driver.hand.now:
            assert driver.hand(Wakeup()) == []
            later = driver.hand.machine.wakeup_at  # what was waited for may have come already
            assert later is None or (at is not None and later >= at)
