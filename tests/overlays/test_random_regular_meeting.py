"""Two nodes become neighbours in whatever order things happen, and a newcomer misses nothing."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.ids import NodeId, part_key
from anabranch.core.machine import Effect, Forward, Send
from anabranch.core.messages import Bye, Contact, Control, Instruction, Meet
from anabranch.core.messages.links import MAX_RECENT_MS
from anabranch.overlays.random_regular import ATTEMPT_EVERY_S, RandomRegular
from machines import NODES, PART, SIGNERS, Chain, Member, of, sent

TRACKER = Contact(NODES[0])
A, B, C, D = NODES[1:5]
KEY = part_key(PART)


def member(place: int) -> Member:
    node = Member(RandomRegular, place, [TRACKER])
    node.join()
    node.up(TRACKER.node)
    return node


class Pair:
    """Two members and the link between them, which carries what they say unless it is lost."""

    def __init__(self) -> None:
        self.one, self.two = member(1), member(2)
        self.counter = 0
        self.wire: list[tuple[Member, NodeId, Control]] = []
        self.frames: list[tuple[NodeId, bytes]] = []
        self.lost: list[bool] = []  # of the messages to come, which are lost

    def perform(self, node: Member, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send and effect.to in (A, B):
                other = self.two if node is self.one else self.one
                if not (self.lost and self.lost.pop(0)):
                    self.wire.append((other, node.me.node, effect.message))
            elif type(effect) is Forward:
                self.frames += [(to, effect.frame) for to, _ in effect.branches]

    def talk(self) -> None:
        """Let all that is on the wire arrive, in order."""
        while self.wire:
            node, sender, message = self.wire.pop(0)
            self.perform(node, node.hear(sender, message))

    def happen(self, word: str) -> None:
        if word == "link":
            self.perform(self.one, self.one.up(B))
            self.perform(self.two, self.two.up(A))
        elif word == "break":
            self.wire.clear()
            self.perform(self.one, self.one.down(B))
            self.perform(self.two, self.two.down(A))
        elif word in ("tell one", "tell two"):
            node, peer = (self.one, B) if word == "tell one" else (self.two, A)
            self.counter += 1
            told = Instruction(PART, self.counter, (), (peer,))
            self.perform(node, node.hear(TRACKER.node, told))
        elif word == "wait":
            for node in (self.one, self.two):
                self.perform(node, node.wait(ATTEMPT_EVERY_S))

    @property
    def neighbours(self) -> list[list[NodeId]]:
        return [self.one.neighbours, self.two.neighbours]


@pytest.mark.parametrize("order", [*permutations(["link", "tell one", "tell two"])])
@pytest.mark.parametrize("at_once", [True, False])
def test_two_meet_in_every_order(order: tuple[str, ...], at_once: bool) -> None:
    both = Pair()
    for word in order:
        both.happen(word)
        if not at_once:
            both.talk()
    both.talk()
    assert both.neighbours == [[B], [A]]
    assert both.wire == []


@given(st.lists(st.booleans(), max_size=8), st.permutations(["link", "tell one", "tell two"]))
def test_two_meet_although_messages_are_lost(lost: list[bool], order: list[str]) -> None:
    both = Pair()
    both.lost = lost
    for word in order:
        both.happen(word)
        both.talk()
    for _ in range(9):
        both.happen("wait")
        both.talk()
    assert both.neighbours == [[B], [A]]


WORDS = st.sampled_from(["link", "break", "tell one", "tell two", "wait", "talk"])


@settings(max_examples=300)
@given(st.lists(WORDS, max_size=30))
def test_two_meet_after_anything(words: list[str]) -> None:
    both, linked = Pair(), False
    for word in words:
        if word == "talk":
            both.talk()
        elif word != ("link" if linked else "break"):
            linked = word == "link" or (linked and word != "break")
            both.happen(word)
    if not linked:
        both.happen("link")
    both.happen("tell one")
    both.happen("tell two")
    both.happen("wait")
    both.talk()
    assert both.neighbours == [[B], [A]]


def test_whom_we_were_not_told_to_have_is_not_met() -> None:
    node = member(1)
    node.up(B)
    assert node.hear(B, Meet(PART)) == []
    assert node.neighbours == []
    assert not node.overlay.accepts(PART, B)


def test_frames_are_taken_from_a_neighbour_before_it_has_met_us() -> None:
    node = member(1)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B,)))
    node.up(B)
    assert node.neighbours == []
    assert node.overlay.accepts(PART, B)


def test_a_bye_ends_it_and_a_meet_begins_it_again() -> None:
    both = Pair()
    for word in ("link", "tell one", "tell two"):
        both.happen(word)
    both.talk()
    both.perform(both.one, both.one.hear(B, Bye(PART)))
    assert both.neighbours == [[], [A]]
    both.happen("wait")
    both.talk()
    assert both.neighbours == [[B], [A]]


# --- The frames of the meantime -------------------------------------------------------------


def asked(effects: list[Effect]) -> dict[NodeId, int]:
    return {to: meet.recent_ms for to, meet in sent(Meet, effects)}


def test_a_newcomer_asks_for_all_since_it_joined() -> None:
    node = member(1)
    node.wait(1.5)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B, C)))
    node.overlay.rtt(B, 0.25, 0.0)
    # The question is on its way for a while, and what B got in that time must count, too.
    assert asked(node.up(B))[B] >= 1_500 + 250
    assert asked(node.up(C))[C] > 1_500


def test_a_newcomer_asks_every_neighbour_until_it_has_them_all() -> None:
    # The first may be a newcomer itself, and know nothing.
    node = member(1)
    node.wait(1)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B, C, D)))
    node.up(B)
    assert asked(node.hear(B, Meet(PART)))[B] > 1_000
    assert asked(node.up(C))[C] > 1_000
    assert asked(node.hear(C, Meet(PART)))[C] > 1_000
    assert asked(node.up(D))[D] > 1_000
    assert asked(node.hear(D, Meet(PART)))[D] > 1_000
    node.hear(TRACKER.node, Instruction(PART, 2, (), (B, C)))
    node.hear(TRACKER.node, Instruction(PART, 3, (), (B, C, D)))
    assert asked(node.hear(D, Meet(PART))) == {D: 0}


def test_a_newcomer_that_gets_only_some_neighbours_stops_asking_in_the_end() -> None:
    node = member(1)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B, C)))
    node.up(B)
    node.hear(B, Meet(PART))
    node.wait(node.recent.keep_s)
    assert asked(node.up(C))[C] > 30_000  # B may know as little
    node.down(C)
    node.wait(1)
    assert asked(node.up(C)) == {C: 0}  # what C could give us now, B has given us


def test_newcomers_who_met_each_other_ask_those_whom_they_meet_later() -> None:
    # A tracker that has just restarted knows only the newcomers at first.
    node = member(1)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B,)))
    node.up(B)
    node.hear(B, Meet(PART))
    node.recent.add(KEY, frame := Chain(SIGNERS[9]).frame(), node.now)
    node.wait(6)
    node.hear(TRACKER.node, Instruction(PART, 2, (), (B, C)))
    assert asked(node.up(C))[C] > 6_000
    assert served(node.hear(C, Meet(PART, True))) == [frame]


def test_who_lost_all_neighbours_asks_for_the_meantime() -> None:
    node = member(1)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B, C, D)))
    node.up(B, C, D)
    for peer in (B, C, D):
        node.hear(peer, Meet(PART))
    node.wait(20)
    node.down(B)
    assert asked(node.up(B)) == {B: 0}  # there were others
    node.down(B, C, D)
    node.wait(1)
    # And a little more: the last ones may have been cut off before.
    assert 3_000 <= asked(node.up(B))[B] <= 6_000
    node.hear(B, Meet(PART, True))
    assert 3_000 <= asked(node.up(C))[C] <= 6_000


def test_nobody_asks_for_more_than_a_minute() -> None:
    node = member(1)
    node.wait(3_600)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B,)))
    assert asked(node.up(B)) == {B: MAX_RECENT_MS}


def serving() -> tuple[Member, list[bytes]]:
    """Make a node that has long had D, knows some frames, and may soon have B besides."""
    node, chain = member(1), Chain(SIGNERS[9])
    node.hear(TRACKER.node, Instruction(PART, 1, (), (D,)))
    node.up(D)
    node.hear(D, Meet(PART))
    node.wait(node.recent.keep_s + 1)
    made = [chain.frame() for _ in range(4)]
    for place, frame in enumerate(made):
        node.recent.add(KEY, frame, node.now + place)
    node.now += 4
    node.hear(TRACKER.node, Instruction(PART, 2, (), (B, D)))
    node.up(B)
    return node, made


def served(effects: list[Effect]) -> list[bytes]:
    return [forward.frame for forward in of(Forward, effects)]


def test_the_newcomer_gets_the_frames_since_it_joined() -> None:
    node, made = serving()
    effects = node.hear(B, Meet(PART, True, 2_500))
    assert served(effects) == made[2:]
    assert of(Forward, effects)[0].branches == [(B, b"\2")]  # nobody waits for a Got
    assert node.neighbours == [B, D]


def test_who_asks_for_nothing_gets_nothing() -> None:
    node, _ = serving()
    assert served(node.hear(B, Meet(PART, False, 0))) == []


def test_a_newcomer_gives_each_neighbour_what_it_has_itself() -> None:
    # Two newcomers that publish may meet each other first, and nobody would ask them.
    node, chain = member(1), Chain(SIGNERS[9])
    node.hear(TRACKER.node, Instruction(PART, 1, (), (B, C, D)))
    node.up(B, C, D)
    node.recent.add(KEY, one := chain.frame(), node.now)
    assert served(node.hear(B, Meet(PART, True))) == [one]
    node.now += 1
    node.recent.add(KEY, two := chain.frame(), node.now)
    assert served(node.hear(C, Meet(PART, True))) == [one, two]
    assert served(node.hear(D, Meet(PART, True))) == [one, two]
    node.down(C)
    node.up(C)
    assert served(node.hear(C, Meet(PART, True))) == []  # it is no newcomer any more


def test_nobody_is_served_twice() -> None:
    # Or a short message would fetch a long answer, as often as somebody likes.
    node, made = serving()
    assert served(node.hear(B, Meet(PART, False, 60_000))) == made
    assert served(node.hear(B, Meet(PART, False, 60_000))) == []
    node.down(B)
    node.up(B)
    assert served(node.hear(B, Meet(PART, True, 60_000))) == made


def test_who_is_no_neighbour_is_not_served() -> None:
    node, _ = serving()
    node.up(C)
    assert served(node.hear(C, Meet(PART, False, 60_000))) == []


def test_nothing_falls_between_the_recent_frames_and_the_flood() -> None:
    both, chain = Pair(), Chain(SIGNERS[9])
    both.happen("link")
    both.happen("tell one")
    both.talk()
    both.one.recent.add(KEY, early := chain.frame(), both.one.now)
    both.happen("tell two")
    both.talk()
    assert both.frames == [(B, early)]
    assert both.neighbours == [[B], [A]]
