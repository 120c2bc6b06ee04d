"""Whom a reader asks: a source and a witness, others while these are no good, never too many."""

import random

from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Hold, Release
from anabranch.core.messages import Contact
from anabranch.core.registry_sources import (
    DIAL_S,
    LEFT_S,
    MAX_HELD,
    REST_S,
    SLOW_S,
    TURN_S,
    Sources,
)
from machines import NODES, START

W, X, Y, Z = (Contact(node, f"ws://{at}") for at, node in enumerate(NODES[:4]))
FOUND_X = Contact(X.node, "ws://found")
FIRST_FIRST = 5  # a seed with which the witnesses' turns begin with the first of them


def hold(contact: Contact) -> Effect:
    return Hold(contact.node, contact.address)


def known(*contacts: Contact, found: Contact = W, up: bool = True) -> Sources:
    """Return sources that know these trackers, and have reached them if they are `up`."""
    sources = Sources(found, random.Random(FIRST_FIRST))
    sources.start(START)
    sources.link(found.node, True, START)
    effects = sources.know(contacts or [W, X, Y], START)
    while up and effects:
        node = effects.pop(0).peer  # type: ignore[union-attr]
        if sources.holds(node):
            effects += sources.link(node, True, START)
    return sources


def test_the_tracker_that_was_found_stands_for_all_at_first() -> None:
    sources = Sources(FOUND_X, random.Random(1))
    assert sources.start(START) == [hold(FOUND_X)]
    assert sources.readers() == ()
    sources.link(X.node, True, START)
    assert sources.readers() == (X.node,)
    assert sources.know([W, X], START) == [hold(W)]
    assert sources.readers() == (X.node,)
    assert sources.link(W.node, True, START) == []
    assert sources.readers() == (W.node, X.node)


def test_where_several_were_found_two_are_asked_from_the_start() -> None:
    sources = Sources(FOUND_X, random.Random(1), [Y, Z])
    held = sources.start(START)
    assert held[0] == hold(FOUND_X)
    assert len(held) == 2
    for effect in held:
        sources.link(effect.peer, True, START)  # type: ignore[union-attr]
    assert sources.readers() == (X.node, held[1].peer)  # type: ignore[union-attr]
    sources.link(X.node, False, START)  # it was false, and lost its link for that
    assert held[1].peer in sources.readers()  # type: ignore[union-attr]
    assert sources.know([], START) == []
    sources.know([W, X], START)
    assert sources.holds(W.node)


def test_a_lonely_tracker_has_no_witness() -> None:
    sources = known(W)
    assert sources.readers() == (W.node,)
    assert sources.wakeup_at is None


def test_a_tracker_that_is_not_listed_is_asked_until_one_of_the_list_is_reached() -> None:
    sources = known(W, Y, found=FOUND_X, up=False)
    assert sources.readers() == (X.node,)
    assert sources.link(W.node, True, START) == [Release(X.node), hold(Y)]
    assert sources.readers() == (W.node,)


def test_while_the_first_is_no_good_two_others_are_held() -> None:
    sources = known(W, X, Y)
    assert sources.readers() == (W.node, X.node)
    assert sources.link(W.node, False, START) == [hold(Y)]
    sources.link(Y.node, True, START)
    assert sources.readers() == (X.node, Y.node)
    [released] = sources.link(W.node, True, START)
    assert released in (Release(X.node), Release(Y.node))
    assert sources.readers()[0] == W.node


def test_a_dial_may_take_only_so_long() -> None:
    sources = known(W, X, Y, found=FOUND_X, up=False)
    assert sources.wakeup_at == START + DIAL_S
    assert sources.wake(START + DIAL_S) == [hold(Y)]
    assert sources.readers() == (X.node,)


def test_witnesses_are_tried_one_after_the_other_and_then_rest() -> None:
    sources = known(W, X, Y, Z)
    assert sources.link(X.node, False, START) == [Release(X.node), hold(Y)]
    assert sources.link(Y.node, False, START) == [Release(Y.node), hold(Z)]
    assert sources.link(Z.node, False, START) == []  # the Peer dials Z again; X and Y rest
    assert sources.readers() == (W.node,)
    assert sources.wake(START + REST_S) == [Release(Z.node), hold(X)]


def test_who_is_slow_is_passed_over_for_a_while() -> None:
    sources = known(W, X)
    assert sources.pass_over(W.node, START) == []
    assert sources.readers() == (X.node,)
    assert sources.pass_over(X.node, START + 1) == []
    assert sources.readers() == (W.node,)  # better than nobody
    sources.wake(START + SLOW_S)
    assert sources.readers() == (W.node,)
    sources.wake(START + SLOW_S + 1)
    assert sources.readers() == (W.node, X.node)


def test_a_new_link_is_not_slow() -> None:
    sources = known(W, X)
    sources.pass_over(W.node, START)
    sources.link(W.node, False, START + 1)
    sources.link(W.node, True, START + 1)
    assert sources.readers() == (W.node, X.node)


def test_a_slow_witness_gives_way_to_the_next() -> None:
    sources = known(W, X, Y)
    assert sources.pass_over(X.node, START) == [Release(X.node), hold(Y)]


def test_links_that_stood_before_they_were_needed_count() -> None:
    sources = known(W, X, Y)
    sources.link(Y.node, True, START)
    assert sources.link(X.node, False, START) == [Release(X.node), hold(Y)]
    assert sources.readers() == (W.node, Y.node)


def test_all_others_have_their_turn() -> None:
    sources, now, seen = known(W, X, Y, Z), START, []
    for _ in range(6):
        seen.append(sources.readers()[1])
        at = sources.wakeup_at
        assert at is not None
        assert 0.75 * TURN_S <= at - now <= 1.25 * TURN_S
        released, held = sources.wake(at)
        assert released == Release(seen[-1])
        assert isinstance(held, Hold)
        assert sources.link(held.peer, True, at) == []
        now = at
    assert seen[:3] == seen[3:]
    assert set(seen) == {X.node, Y.node, Z.node}


def test_a_first_tracker_that_is_replaced_gives_way() -> None:
    sources = known(W, X)
    assert sources.know([Y, X], START) == [Release(W.node), hold(Y)]
    assert sources.readers() == (X.node,)
    sources.link(Y.node, True, START)
    assert sources.readers() == (Y.node, X.node)


def test_who_was_found_out_comes_last() -> None:
    sources = known(W, X, Y)
    assert sources.leave(W.node, START) == [Release(W.node), hold(Y)]
    assert sources.left == {W.node}
    sources.link(Y.node, True, START)
    assert sources.readers() == (X.node, Y.node)
    assert sources.sizes()["left trackers"][0] == 1
    assert hold(W) in sources.wake(START + LEFT_S)
    assert sources.left == frozenset()


def test_who_was_found_out_stays_as_the_witness_only_for_want_of_another() -> None:
    sources = known(W, X)
    assert sources.leave(W.node, START) == []
    assert sources.readers() == (X.node, W.node)
    sources = known(W, X, Y)
    sources.leave(W.node, START)
    assert sources.readers() == (X.node,)
    assert sources.link(Y.node, False, START) == [Release(Y.node), hold(W)]
    sources.link(W.node, True, START)
    assert sources.readers() == (X.node, W.node)


def test_when_all_were_found_out_the_list_counts() -> None:
    sources = known(W, X, Y)
    for contact in (W, X, Y):
        sources.leave(contact.node, START)
    for contact in (W, X, Y):
        sources.link(contact.node, True, START)
    assert sources.readers()[0] == W.node
    assert len(sources.readers()) == 2


def test_who_is_not_listed_any_more_is_not_remembered() -> None:
    sources = known(W, X, Y)
    sources.leave(W.node, START)
    sources.know([X, Y], START)
    assert sources.left == frozenset()
    assert sources.came_at(W.node) == 0.0


def test_since_when_a_tracker_can_be_expected_to_know() -> None:
    sources = known(W, X)
    assert sources.came_at(X.node) == START
    for at in (5, 10):  # one that comes again and again has had its time
        sources.link(X.node, False, START + at)
        sources.link(X.node, True, START + at)
        assert sources.came_at(X.node) == START
    sources.link(X.node, False, START + LEFT_S)
    sources.link(X.node, True, START + LEFT_S)
    assert sources.came_at(X.node) == START + LEFT_S
    sources.link(Y.node, True, START + 1)
    assert sources.came_at(Y.node) == 0.0
    sources.know([W, Y], START + 2)
    assert sources.came_at(Y.node) == START + 1


def test_holds_are_balanced_and_few_whatever_happens() -> None:
    for seed in range(300):
        rng, now = random.Random(seed), START
        sources = Sources(rng.choice([W, FOUND_X]), rng)
        held: dict[NodeId, None] = {}
        effects = sources.start(now)
        for _ in range(60):
            for effect in effects:
                if type(effect) is Hold:
                    assert effect.peer not in held
                    held[effect.peer] = None
                elif type(effect) is Release:
                    del held[effect.peer]
            assert 1 <= len(held) <= MAX_HELD == sources.sizes()["held trackers"][1]
            assert all(map(sources.holds, held))
            assert set(sources.readers()) <= set(held)
            effects, now = step(sources, rng, now)


def step(sources: Sources, rng: random.Random, now: float) -> tuple[list[Effect], float]:
    """Let something happen."""
    nodes: list[NodeId] = [W.node, X.node, Y.node, Z.node, NODES[9]]
    what = rng.randrange(6)
    if what < 2:
        return sources.link(rng.choice(nodes), rng.random() < 0.5, now), now
    if what == 2:
        return sources.pass_over(rng.choice(nodes), now), now
    if what == 3:
        return sources.know(rng.sample([W, X, Y, Z], rng.randint(1, 4)), now), now
    if what == 4:
        return sources.leave(rng.choice(sources._contacts).node, now), now
    now = max(now, sources.wakeup_at or now) + rng.random()
    return sources.wake(now), now
