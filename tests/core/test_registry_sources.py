"""Whom a reader asks: the writer, a stand-in while that one is no good, and never too many."""

import random

from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Hold, Release
from anabranch.core.messages import Contact
from anabranch.core.registry_sources import DIAL_S, MAX_HELD, REST_S, SLOW_S, Sources
from machines import NODES, START

W, X, Y = (Contact(node, f"ws://{at}") for at, node in enumerate(NODES[:3]))
FOUND_X = Contact(X.node, "ws://found")


def hold(contact: Contact) -> Effect:
    return Hold(contact.node, contact.address)


def known(*, found: Contact = W) -> Sources:
    """Return sources that have reached the writer and know all trackers."""
    sources = Sources(found)
    sources.start(START)
    sources.link(found.node, True, START)
    sources.know([W, X, Y], START)
    return sources


def test_the_tracker_that_was_found_stands_for_all_at_first() -> None:
    sources = Sources(FOUND_X)
    assert sources.start(START) == [hold(FOUND_X)]
    assert sources.current() is None
    sources.link(X.node, True, START)
    assert sources.current() == sources.writer == X.node
    assert sources.know([W, X, Y], START) == [hold(W)]
    assert sources.current() is None  # the writer is being dialled
    assert sources.link(W.node, True, START) == [Release(X.node)]
    assert sources.current() == sources.writer == W.node


def test_a_writer_that_cannot_be_reached_is_waited_for_only_so_long() -> None:
    sources = known(found=FOUND_X)
    assert sources.wakeup_at == START + DIAL_S
    assert sources.wake(START + DIAL_S) == []
    assert sources.current() == X.node
    assert sources.link(W.node, True, START + DIAL_S + 1) == [Release(X.node)]


def test_a_writer_that_refuses_is_not_waited_for() -> None:
    sources = known(found=FOUND_X)
    assert sources.link(W.node, False, START) == []
    assert sources.current() == X.node


def test_stand_ins_are_tried_one_after_the_other_and_then_rest() -> None:
    sources = known()
    assert sources.link(W.node, False, START) == [hold(X)]
    assert sources.link(X.node, False, START) == [Release(X.node), hold(Y)]
    assert sources.link(Y.node, False, START) == []  # the Peer dials Y again; X rests
    assert sources.current() is None
    assert sources.wake(START + REST_S) == [Release(Y.node), hold(X)]
    sources.link(X.node, True, START + REST_S)
    assert sources.current() == X.node


def test_a_slow_writer_is_kept_and_tried_again() -> None:
    sources = known()
    assert sources.pass_over(W.node, START) == [hold(X)]
    assert sources.current() == W.node  # better than nobody
    sources.link(X.node, True, START)
    assert sources.current() == X.node
    assert sources.wake(START + SLOW_S) == [Release(X.node)]
    assert sources.current() == W.node


def test_a_slow_stand_in_gives_way_to_the_next() -> None:
    sources = known()
    sources.link(W.node, False, START)
    sources.link(X.node, True, START)
    assert sources.pass_over(X.node, START) == [Release(X.node), hold(Y)]


def test_links_that_stood_before_they_were_needed_count() -> None:
    sources = known()
    sources.link(X.node, True, START)
    assert sources.link(W.node, False, START) == [hold(X)]
    assert sources.current() == X.node


def test_a_tracker_does_not_ask_itself() -> None:
    sources = Sources(W, me=X.node)
    sources.start(START)
    sources.link(W.node, True, START)
    sources.know([W, X, Y], START)
    assert sources.link(W.node, False, START) == [hold(Y)]


def test_a_writer_that_is_replaced_stands_in_until_the_new_one_is_reached() -> None:
    sources = known()
    assert sources.know([Y, X], START) == [hold(Y)]
    assert sources.current() is None
    assert sources.link(Y.node, True, START) == [Release(W.node)]
    assert sources.writer == sources.current() == Y.node
    assert sources.stop() == [Release(Y.node)]


def test_holds_are_balanced_and_few_whatever_happens() -> None:
    for seed in range(200):
        rng, now = random.Random(seed), START
        sources, held = Sources(rng.choice([W, FOUND_X]), me=rng.choice([None, Y.node])), {}
        effects = sources.start(now)
        for _ in range(60):
            for effect in effects:
                if type(effect) is Hold:
                    assert effect.peer not in held
                    held[effect.peer] = None
                elif type(effect) is Release:
                    del held[effect.peer]
            assert 1 <= len(held) <= MAX_HELD == sources.sizes()["held trackers"][1]
            assert sources.current() is None or sources.current() in held
            effects, now = step(sources, rng, now)
        assert sorted(e.peer for e in sources.stop() if type(e) is Release) == sorted(
            {**held, **{e.peer: None for e in effects if type(e) is Hold}}.keys()
            - {e.peer for e in effects if type(e) is Release}
        )


def step(sources: Sources, rng: random.Random, now: float) -> tuple[list[Effect], float]:
    """Let something happen."""
    nodes: list[NodeId] = [W.node, X.node, Y.node, NODES[9]]
    what = rng.randrange(5)
    if what < 2:
        return sources.link(rng.choice(nodes), rng.random() < 0.5, now), now
    if what == 2:
        return sources.pass_over(rng.choice(nodes), now), now
    if what == 3:
        return sources.know(rng.sample([W, X, Y], rng.randint(1, 3)), now), now
    now = max(now, sources.wakeup_at or now) + rng.random()
    return sources.wake(now), now
