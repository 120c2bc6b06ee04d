"""The key exchange under any course of events: order, secrecy, and in the end everything."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import group_keys
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import NodeId
from anabranch.core.machine import LinkDown, LinkUp
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from key_world import READ, WRITE, KeyWorld, as_it_is
from machines import NODES

READERS = (2, 3, 4, 5)
EDGES = ((1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (2, 5))

STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("remove"), st.sampled_from(READERS)),
    st.tuples(st.just("admit"), st.sampled_from(READERS)),
    st.tuples(st.just("lose"), st.integers(0, 7)),
    st.tuples(st.just("wait"), st.sampled_from((0, 1, 3, 10))),
    st.tuples(st.just("unlink"), st.sampled_from(range(len(EDGES)))),
    st.tuples(st.just("registry"), st.booleans()),
)


@pytest.fixture(autouse=True, scope="module")
def _short_lives() -> object:
    """Let keys be used for three frames only."""
    patch = pytest.MonkeyPatch()
    patch.setattr(group_keys, "ROTATE_FRAMES", 3)
    yield
    patch.undo()


class Story:
    """A publisher, four readers, and what happens to them."""

    def __init__(self) -> None:
        self.world = KeyWorld(*EDGES)
        self.world.let(1, WRITE)
        for place in READERS:
            self.world.let(place, READ)
        self.world.start(1, subscribe=False)
        self.world.start(*READERS)
        self.count = 0
        self.removed: dict[int, list[int]] = {place: [] for place in READERS}  # may not read these
        self.out: set[int] = set()  # as the publisher knows
        self.publish(1)

    def publish(self, amount: int) -> None:
        for _ in range(amount):
            self.world.publish(1, b"%d" % self.count)
            for place in self.out:
                self.removed[place].append(self.count)
            self.count += 1

    def remove(self, place: int) -> None:
        self.world.let(place, 0)
        self._tell(place)
        self.out.add(place)

    def admit(self, place: int) -> None:
        self.world.let(place, READ)
        self._tell(place)
        self.out.discard(place)

    def _tell(self, place: int) -> None:
        """Let everybody know but for whom it concerns, who would rather not."""
        self.world.announce(1, *(other for other in READERS if other != place))

    def lose(self, which: int) -> None:
        """Lose every other request, every other answer, or both; or nothing."""
        seen = 0

        def fate(sender: NodeId, to: NodeId, message: Control) -> Sequence[Control]:
            nonlocal seen
            seen += 1
            lost = (type(message) is KeyRequest and which & 1) or (
                type(message) is KeyAnswer and which & 2
            )
            return [] if lost and (seen % 2 or which & 4) else [message]

        self.world.fate = fate

    def unlink(self, edge: int) -> None:
        one, other = (NODES[place] for place in EDGES[edge])
        for event in (LinkDown, LinkUp):
            for place, peer in zip(EDGES[edge], (other, one), strict=True):
                self.world.do(place, event(peer, "reset") if event is LinkDown else LinkUp(peer))

    def wait(self, seconds: int) -> None:
        self.world.wait(seconds)

    def registry(self, reachable: bool) -> None:
        self.world.reachable = reachable


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=60, deadline=None)
def test_order_secrecy_and_in_the_end_everything(steps: list[tuple[str, int]]) -> None:
    story = Story()
    world = story.world
    for name, argument in steps:
        getattr(story, name)(argument)
    # All is well again: what is published from now on reaches everybody who may read it.
    world.fate, world.reachable = as_it_is, True
    world.run()
    world.announce()
    world.wait(HOLD_S)
    healed = story.count
    story.publish(7)
    world.wait(HOLD_S)
    for place in READERS:
        read = [int(content) for content in world.read(place)]
        assert read == sorted(set(read)), "in order, and once"
        stolen = {int(content) for content in world.opened_by(place, *world.published())}
        later = {number for number in story.removed[place] if place in story.out}
        assert not stolen & later
        if place not in story.out:
            assert read[-7:] == list(range(healed, healed + 7))
        assert world.ended(place) == []
