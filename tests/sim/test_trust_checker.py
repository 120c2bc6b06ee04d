"""Every rule of trust, broken once: a guard that cannot fail is worthless."""

from collections.abc import Callable

import pytest

from anabranch.core import frames
from anabranch.core.changes import Right, SetPermission
from anabranch.core.encryption import GroupKey, encrypt, wrap
from anabranch.core.history import make_change
from anabranch.core.ids import FrameHead, chain_key, part_key
from anabranch.core.machine import Deliver, Draft, KeepKey, Learned
from anabranch.core.messages.data import Body
from anabranch.sim.network import Constant, SimNode
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.trust_checker import TrustChecker
from anabranch.sim.trusted_cluster import BOTH, OWNERS, TrustedCluster

KEY = GroupKey(b"k" * 16, b"s" * 32)
NEXT = GroupKey(b"n" * 16, b"t" * 32)
SECRET = b"what few may read"


class Bench:
    """Five nodes that have settled, a private stream, a publisher, a reader, and a stranger."""

    def __init__(self) -> None:
        self.sim = Simulator(Constant(5), 1)
        self.cluster = TrustedCluster(self.sim, 1, 5, trackers=2)
        self.part = self.cluster.parts[0]
        self.stream = self.part.stream
        self.checker = TrustChecker(self.cluster, "random-regular")
        self.publisher = self.cluster.peers[OWNERS[0]]
        self.reader, self.stranger = self.cluster.peers[3:]
        for node in self.cluster.peers:
            self.cluster.subscribe(node, self.part)
            self.checker.joined(node, self.part, True)
        self.sim.run(START_AT + 5)
        self.number = 5
        for node in [*self.cluster.peers, *self.cluster.trackers]:
            self.permit(node, self.reader, BOTH, at=START_AT)
            self.permit(node, self.stranger, Right(0), at=START_AT)

    def permit(
        self,
        where: SimNode,
        whom: SimNode,
        rights: Right,
        at: float | None = None,
        until: float = 0.0,
    ) -> None:
        """Let one node, and no other, hear of a permission."""
        history = self.cluster.history(where, self.stream)
        action = SetPermission(self.cluster.user(whom), rights, int(until * 1000))
        change = make_change(self.cluster.owner, history, action, at or self.sim.now)
        history.add(change, lambda author, digest, signature: True)
        if where in self.cluster.peers:
            self.checker.told(where, Learned(self.stream, history.height), self.sim.now)

    def frame(self, lock: frames.Locking | None, by: SimNode | None = None) -> bytes:
        """Make the next frame of somebody."""
        user = self.cluster.users[(by or self.publisher).id]
        self.number += 1
        return frames.build(
            part_key(self.part),
            chain_key(user.node, 1),
            0,
            [(self.number, Draft(SECRET))],
            user.sign,
            lock,
        )

    def sealed(self, key: GroupKey = KEY, following: GroupKey | None = None) -> bytes:
        def lock(head: FrameHead, items: bytes) -> Body:
            next_key = wrap(key, following, head, bytes(12)) if following else b""
            return Body(encrypt(key, head, items, bytes(12)), 1, key.id, next_key)

        return self.frame(lock)

    def publish(self, frame: bytes, by: SimNode | None = None) -> None:
        self.checker.published(by or self.publisher, frames.peek(frame), frame, self.sim.now)

    def deliver(self, frame: bytes, to: SimNode, key: GroupKey | None = None) -> None:
        head, secret = frames.peek(frame), key.secret if key else b""
        self.checker.handed(to, Deliver(self.part, head, frame, 1, secret), self.sim.now)
        self.checker.delivered(to, head, frame, 1, 0.01)

    def give(self, node: SimNode, key: GroupKey = KEY) -> None:
        owner = self.cluster.user(self.publisher)
        node.disk.keep(KeepKey(self.stream, owner, key.id, key.secret))


def nothing_wrong(bench: Bench) -> None:
    frame = bench.sealed()
    bench.publish(frame)
    for node in (bench.publisher, bench.reader):
        bench.give(node)
        bench.deliver(frame, node, KEY)
    bench.checker.bounds()
    bench.checker.settled()
    bench.checker.ended()


def published_in_the_clear(bench: Bench) -> None:
    bench.publish(bench.frame(None))


def read_without_permission(bench: Bench) -> None:
    frame = bench.sealed()
    bench.publish(frame)
    bench.deliver(frame, bench.stranger, KEY)


def published_without_permission(bench: Bench) -> None:
    frame = bench.frame(None, bench.stranger)
    bench.publish(frame, bench.stranger)
    bench.deliver(frame, bench.reader)


def readable_on_the_way(bench: Bench) -> None:
    def leak(head: FrameHead, items: bytes) -> Body:
        return Body(encrypt(KEY, head, items, bytes(12)), 1, KEY.id, SECRET)

    frame = bench.frame(leak)
    bench.publish(frame)
    bench.deliver(frame, bench.reader, KEY)


def key_of_a_stranger(bench: Bench) -> None:
    bench.publish(bench.sealed())
    bench.give(bench.stranger)
    bench.checker.bounds()


def old_key_used_after_removal(bench: Bench) -> None:
    bench.publish(bench.sealed())
    bench.give(bench.reader)
    bench.checker.bounds()
    assert bench.checker.violations == []
    bench.permit(bench.publisher, bench.reader, Right(0))
    bench.publish(bench.sealed())
    bench.checker.bounds()


def old_key_used_after_expiry(bench: Bench) -> None:
    for node in bench.cluster.peers:
        bench.permit(node, bench.reader, Right.SUBSCRIBE, until=bench.sim.now + 1)
    bench.publish(bench.sealed())
    bench.give(bench.reader)
    bench.checker.bounds()
    assert bench.checker.violations == []
    bench.sim.run(bench.sim.now + 1)
    bench.publish(bench.sealed())
    bench.checker.bounds()


def key_from_one_who_had_not_heard_of_the_removal(bench: Bench) -> None:
    bench.permit(bench.publisher, bench.reader, Right(0))
    bench.publish(bench.sealed())
    other = next(n for n in bench.cluster.peers if n not in (bench.publisher, bench.reader))
    assert bench.cluster.may(bench.reader, bench.part, Right.SUBSCRIBE)
    bench.checker.told(other, Learned(bench.stream, 1), bench.sim.now)
    bench.give(bench.reader)
    bench.checker.bounds()


def key_under_another_name(bench: Bench) -> None:
    bench.publish(bench.sealed())
    bench.give(bench.stranger, GroupKey(b"?" * 16, KEY.secret))
    bench.checker.bounds()
    assert bench.checker.violations == []
    bench.checker.ended()


def next_key_to_be_unwrapped(bench: Bench) -> None:
    bench.give(bench.reader)
    bench.publish(bench.sealed(KEY, NEXT))
    bench.permit(bench.publisher, bench.reader, Right(0))
    bench.publish(bench.sealed(NEXT))
    bench.checker.bounds()
    assert bench.checker.violations == []
    bench.checker.ended()


def a_node_believes_something_else(bench: Bench) -> None:
    bench.permit(bench.reader, bench.reader, Right.SUBSCRIBE)
    bench.checker.settled()


def a_tracker_believes_something_else(bench: Bench) -> None:
    bench.permit(bench.cluster.trackers[1], bench.reader, Right.SUBSCRIBE)
    bench.checker.settled()


def a_neighbour_without_rights(bench: Bench) -> None:
    for node in [*bench.cluster.peers, *bench.cluster.trackers]:
        bench.permit(node, bench.reader, Right(0), at=bench.sim.now)
    bench.checker.settled()


@pytest.mark.parametrize(
    ("story", "complaint"),
    [
        (published_in_the_clear, "in the clear"),
        (read_without_permission, "may not read"),
        (published_without_permission, "may not publish"),
        (readable_on_the_way, "can be read in its frame"),
        (key_of_a_stranger, "has a key to what it may not read"),
        (old_key_used_after_removal, "has a key to what it may not read"),
        (old_key_used_after_expiry, "has a key to what it may not read"),
        (key_from_one_who_had_not_heard_of_the_removal, "has a key to what it may not read"),
        (key_under_another_name, "opens what it may not read"),
        (next_key_to_be_unwrapped, "opens what it may not read"),
        (a_node_believes_something_else, "another head"),
        (a_tracker_believes_something_else, "another head"),
        (a_neighbour_without_rights, "a neighbour without rights"),
    ],
)
def test_every_rule_can_be_broken(story: Callable[[Bench], None], complaint: str) -> None:
    bench = Bench()
    story(bench)
    assert any(complaint in text for text in bench.checker.violations), bench.checker.violations


def test_a_run_in_order_has_no_violation() -> None:
    bench = Bench()
    nothing_wrong(bench)
    assert bench.checker.violations == []
    assert bench.checker.sealed == 1


def test_whoever_is_permitted_later_may_have_the_key_to_what_was_before() -> None:
    bench = Bench()
    bench.publish(bench.sealed())
    bench.permit(bench.publisher, bench.stranger, Right.SUBSCRIBE)
    bench.give(bench.stranger)
    bench.checker.bounds()
    bench.checker.ended()
    assert bench.checker.violations == []


@pytest.mark.parametrize("taken_back", [False, True])
@pytest.mark.parametrize("first", ["heard", "published"])
def test_whom_others_know_to_be_permitted_may_have_the_key(first: str, taken_back: bool) -> None:
    """Whoever reads may give it to him, though the publisher has heard nothing."""
    bench = Bench()
    if first == "published":
        bench.publish(bench.sealed())
    bench.permit(bench.reader, bench.stranger, Right.SUBSCRIBE)
    bench.give(bench.stranger)
    if taken_back:
        bench.permit(bench.reader, bench.stranger, Right(0))
    bench.publish(bench.sealed())
    bench.checker.bounds()
    bench.checker.ended()
    assert bench.checker.violations == []


def test_a_faithless_node_is_not_blamed_for_what_it_is() -> None:
    bench = Bench()
    bench.cluster.disguised[bench.stranger.id] = "unpermitted"
    frame = bench.frame(None, bench.stranger)
    bench.publish(frame, bench.stranger)
    bench.deliver(frame, bench.stranger)
    assert bench.checker.violations == []
