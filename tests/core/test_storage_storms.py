"""Storage nodes through crashes, partitions, loss and full disks: nothing that is settled moves.

The world of these tests checks after every event that all agree on what is settled, and every word
that is given; a storm ends with all being well, and then all logs must be one, with every frame.
"""

import random

import pytest

from anabranch.core import log_leading
from storage_world import Faults, StorageWorld

SEEDS = 60


def storm(size: int, seed: int, rounds: int = 12) -> StorageWorld:
    """Let nodes go through much trouble, above all those who lead; and then let all be well."""
    rng = random.Random(seed)
    faults = Faults(
        loss=rng.choice((0, 0.02, 0.2)),
        copies=rng.choice((0, 0.1)),
        delay_s=(0.005, rng.choice((0.05, 0.3, 0.8))),
        disk_s=(0.001, rng.choice((0.02, 0.3))),
        missed=rng.choice((0, 0.3)),
        failed=rng.choice((0, 0, 0.1)),
        equivocal=rng.choice((0, 0.2)),
    )
    world = StorageWorld(size, seed, faults)
    world.start(*range(size))
    world.run(4)
    for _ in range(rounds):
        _trouble(world, rng)
        for _ in range(rng.randrange(6)):
            places = rng.sample(range(size), rng.randint(1, size))
            world.publish(*places, asks=rng.random() < 0.3)
        if rng.random() < 0.4:
            world.run_until_led(6)
            world.run(rng.random() * 0.5)
        else:
            world.run(rng.choice((0.05, 0.3, 1)))
    world.heal()
    world.run(25)
    world.check_end()
    return world


def _trouble(world: StorageWorld, rng: random.Random) -> None:
    size, what, leader = len(world.keepers), rng.random(), world.primary()
    order = list(range(size))
    rng.shuffle(order)
    if what < 0.15 and leader is not None:  # it goes on alone, and what it places is not settled
        others = [place for place in order if place != leader]
        company = others[: rng.choice((0, 0, 1))] if size > 3 else []
        world.part_into([leader, *company], [p for p in others if p not in company])
        for _ in range(rng.randrange(8)):
            world.publish(leader)
    elif what < 0.3 and leader is not None:
        world.stop(leader)
    elif what < 0.4:
        running = world.keepers[order[0]].machine is not None
        (world.stop if running else world.start)(order[0])
    elif what < 0.5:
        cut = rng.randrange(size + 1)
        world.part_into(order[:cut], order[cut:])
    elif what < 0.65:
        world.part_into(order)
    elif what < 0.8:
        world.start(*(k.place for k in world.keepers if k.machine is None))
    elif what < 0.83:
        world.outage[order[0]] = not world.outage[order[0]]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log take many pages, so that much can happen between two of them."""
    monkeypatch.setattr(log_leading, "PAGE_BYTES", 450)
    monkeypatch.setattr(log_leading, "MAX_FRESH_BYTES", 450)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_what_is_settled_stays_and_in_the_end_all_is_one(size: int) -> None:
    worlds = [storm(size, seed) for seed in range(SEEDS)]
    # Else the storms have shown nothing.
    assert sum(world.high for world in worlds) > SEEDS * 15
    assert sum(len(world.words) for world in worlds) > SEEDS
    assert sum(world.status(0).epoch for world in worlds) > SEEDS * 2
