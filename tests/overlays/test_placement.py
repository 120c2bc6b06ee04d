"""What links are worth, on graphs small enough to see it."""

import random

from anabranch.overlays.placement import Forest, tree_of

# A ring of five with delays of 10, and a chord 0-2 of 5.
LINKS = {(0, 1): 10.0, (1, 2): 10.0, (2, 3): 10.0, (3, 4): 10.0, (0, 4): 10.0, (0, 2): 5.0}


def near_of(links: dict[tuple[int, int], float], nodes: int) -> list[list[tuple[int, float]]]:
    near: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
    for (a, b), delay_ms in links.items():
        near[a].append((b, delay_ms))
        near[b].append((a, delay_ms))
    return near


def total(links: dict[tuple[int, int], float], nodes: int, sources: list[int]) -> float:
    near = near_of(links, nodes)
    return sum(sum(tree_of(near, source)[0]) for source in sources)


def test_a_tree_has_the_shortest_delays_and_who_is_behind_whom() -> None:
    delays, parents, behind = tree_of(near_of(LINKS, 5), 0)
    assert delays == [0.0, 10.0, 5.0, 15.0, 10.0]
    assert parents == [-1, 0, 0, 2, 0]
    assert behind == [5, 1, 2, 1, 1]


def test_losses_and_gains_are_careful_estimates_of_what_one_link_changes() -> None:
    forest = Forest(near_of(LINKS, 5), range(5))
    without = {link: ms for link, ms in LINKS.items() if link != (0, 2)}
    worth = total(without, 5, [*range(5)]) - total(LINKS, 5, [*range(5)])
    # Who is behind may know another way, and who is not may gain as well: both err to one side.
    assert forest.loss(0, 2) == forest.loss(2, 0) >= worth > 0
    assert 0 < Forest(near_of(without, 5), range(5)).gain(0, 2, 5.0) <= worth
    assert forest.gain(1, 4, 1_000.0) == 0.0
    assert forest.loss(1, 4) == 0.0  # there is no such link
    assert forest.sources == 5


def test_what_cuts_nodes_off_costs_much() -> None:
    forest = Forest(near_of({(0, 1): 1.0, (1, 2): 1.0}, 3), [0])
    assert forest.loss(1, 2) >= 200
    assert forest.loss(0, 1) >= 2 * 200


def test_a_new_link_brings_at_least_what_was_said() -> None:
    rng = random.Random(1)
    for _ in range(20):
        links = {(i, (i + 1) % 12): rng.uniform(1, 30) for i in range(11)} | {(0, 11): 3.0}
        forest = Forest(near_of(links, 12), range(12))
        a, b = sorted(rng.sample(range(12), 2))
        if (a, b) in links:
            continue
        said = forest.gain(a, b, 2.0)
        brought = total(links, 12, [*range(12)]) - total(links | {(a, b): 2.0}, 12, [*range(12)])
        assert brought >= said - 1e-9


def test_nobody_and_the_mean() -> None:
    assert Forest([[]], [0]).mean_ms() == 0.0
    assert Forest(near_of({(0, 1): 4.0}, 2), [0, 1]).mean_ms() == 4.0
