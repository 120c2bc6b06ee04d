"""Writes zeros over every page and every sector of a storage node's file: `tests/soak_damage.py`.

One JSON object for each kind of damage; the exit code is 1 if anything is not repaired, or if any
history is short. `live/storage/damaged_cluster.py` says what is checked.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from live.storage.damaged_cluster import PAGE_BYTES, SECTOR_BYTES, DamagedCluster

SEVERAL = 100  # runs with damage in several places
KILLED_SHARE = 8  # one in so many pages of the write-ahead log of a node that was killed

Damage = Callable[[], None]


def kinds(cluster: DamagedCluster, rng: Random) -> dict[str, Sequence[Damage]]:
    """Return what is to be done, by its kind."""
    pages, sectors = cluster.places(PAGE_BYTES), cluster.places(SECTOR_BYTES)
    newest, every = cluster.newest_wal_places(), cluster.wal_places()
    before, running = cluster.damage_before_start, cluster.damage_while_running
    several = [rng.sample(pages[2:], rng.randrange(2, 20)) for _ in range(SEVERAL)]
    killed = partial(running, is_killed=True)
    return {
        "page before a start": [partial(before, PAGE_BYTES, at) for at in pages],
        "sector before a start": [partial(before, SECTOR_BYTES, at) for at in sectors],
        "several pages before a start": [partial(before, PAGE_BYTES, *some) for some in several],
        "page while running": [partial(running, PAGE_BYTES, at) for at in pages],
        "sector while running": [partial(running, SECTOR_BYTES, at) for at in sectors],
        "page of the WAL while running": [partial(killed, PAGE_BYTES, at) for at in newest],
        "page of the WAL after a kill": [
            partial(cluster.damage_wal, PAGE_BYTES, at) for at in every[::KILLED_SHARE]
        ],
    }


def main() -> int:
    """Do every damage, one after the other; print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="anabranch-soak-") as folder:
        names = list(kinds(DamagedCluster(Path(folder, "names")), Random(options.seed)))
        for number, name in enumerate(names):
            cluster = DamagedCluster(Path(folder, str(number)), options.seed)
            every = kinds(cluster, Random(options.seed))[name]
            problem = ""
            try:
                for damage in every:
                    damage()
            except AssertionError as error:
                problem, wrong = repr(error), 1
            print(json.dumps({"kind": name, "runs": len(every), **cluster.seen, "wrong": problem}))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
