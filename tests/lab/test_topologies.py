import random

from anabranch.lab.topologies import grow, is_regular, links_of, topology_of
from anabranch.lab.underlays import AWS16, make_underlay


def test_an_overlay_is_regular_when_both_ends_agree_and_no_slot_is_free() -> None:
    a, b, c, d = (bytes([i]) * 20 for i in range(4))
    ring = {a: (b, d), b: (a, c), c: (b, d), d: (a, c)}
    assert is_regular(ring, 2)
    assert not is_regular(ring, 3)
    assert not is_regular(ring | {a: (b, c)}, 2)
    assert is_regular({a: (b, c), b: (a, c), c: (a, b)}, 4)
    assert not is_regular({a: (b,), b: (a,), c: ()}, 2)


def test_an_overlay_is_regular_when_only_slots_of_dishonest_nodes_are_empty() -> None:
    a, b, c, d = (bytes([i]) * 20 for i in range(4))
    line = {a: (b,), b: (a, c), c: (b, d), d: (c,)}
    assert is_regular(line, 2, {b, c})
    assert is_regular(line, 2, {a, b, c})
    assert not is_regular(line, 2, {a, b, c, d})
    assert not is_regular(line | {b: (a,), c: (d,)}, 2, {b, c})


def test_time_to_learn_passes_after_the_overlay_has_settled() -> None:
    settled, learned = (
        grow(AWS16(12), 12, 4, "random-regular", "seed", learning_s=wait_s) for wait_s in (0, 30)
    )
    assert learned.sim.now == settled.sim.now + 30
    assert links_of(learned) == links_of(settled)


def test_a_topology_has_every_link_once_and_every_hop_its_delay() -> None:
    underlay = make_underlay("cities", 20, random.Random(1))
    cluster = grow(underlay, 20, 4, "random-regular", "seed", 0.001)
    topology = topology_of(cluster, underlay, 0.001)
    links = topology.links().tolist()
    assert len(links) == 40
    assert links == sorted(links)
    graph = topology.graph()
    for a, near in enumerate(topology.neighbours):
        for at, b in enumerate(near, graph.starts[a]):
            assert [min(a, b), max(a, b)] in links
            assert (graph.targets[at], graph.delays_s[at]) == (b, underlay.delay_s(a, b) + 0.001)
