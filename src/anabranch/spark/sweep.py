"""Fans units of work out over Spark: what one process would compute in turn, on many.

A unit is whatever can be pickled, and so is its result. Units travel in the closure, results as
pickled bytes in Arrow batches. They go out in waves, one Spark job each, so that results come
while others are still computed, and never wait in the driver all at once. A wave has a few tasks
for each core, with many units each: a task costs more than a small simulation. A task that is
lost is computed again, by Spark; since a unit determines its result, nothing else changes.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from anabranch.spark.session import explained, own_session

if TYPE_CHECKING:  # slow to import, and optional
    import pyarrow as pa
    from pyspark.sql import SparkSession

MOST_WAVES = 6
UNITS_PER_CORE = 8  # at least, in a wave: cores idle at its end
TASKS_PER_CORE = 2  # at most, in a wave: a worker collects its garbage after each
BATCH_BYTES = 1 << 22  # of results that a task sends at a time
SCHEMA = "place long, result binary"

# What a session needs for this: simulated nodes send many results, and the driver keeps a wave.
SETTINGS = {"spark.driver.memory": "4g", "spark.driver.maxResultSize": "0"}

U = TypeVar("U")
R = TypeVar("R")


def on_spark(
    name: str, master: str | None
) -> Callable[[Callable[[U], R], Sequence[U]], Iterator[R]]:
    """Return fan_out with a session of its own, which it opens at first and stops at last."""

    def sweep(compute: Callable[[U], R], units: Sequence[U]) -> Iterator[R]:
        with explained(), own_session(name, master, **SETTINGS) as session:
            yield from fan_out(session, compute, units)

    return sweep


def fan_out(session: "SparkSession", compute: Callable[[U], R], units: Sequence[U]) -> Iterator[R]:
    """Yield compute(unit) of each unit, in their order.

    `compute` is a function at the top of a module that the executors can import.
    """
    done = 0
    while done < len(units):
        # Executors come and go, so it is asked anew.
        cores = session.sparkContext.defaultParallelism
        wave = units[done : done + wave_size(len(units), done, cores)]
        yield from compute_wave(session, compute, wave, min(len(wave), TASKS_PER_CORE * cores))
        done += len(wave)


def wave_size(units: int, done: int, cores: int) -> int:
    """Return how many units go out next; no wave is left that is much smaller than others."""
    left = units - done
    least = max(UNITS_PER_CORE * cores, -(-units // MOST_WAVES))
    return -(-left // max(1, left // least))


def compute_wave(
    session: "SparkSession", compute: Callable[[U], R], units: Sequence[U], tasks: int
) -> Iterator[R]:
    """Compute some units in one job; yield the results in the order of the units."""
    # Later units tend to be larger. Dealt out like cards, every task has some of each size.
    dealt = [place for first in range(tasks) for place in range(first, len(units), tasks)]

    def compute_some(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        mine = (dealt[number] for batch in batches for number in batch.column("id").to_pylist())
        places: list[int] = []
        results: list[bytes] = []
        for place in mine:
            places.append(place)
            results.append(pickle.dumps(compute(units[place]), pickle.HIGHEST_PROTOCOL))
            if sum(map(len, results)) >= BATCH_BYTES:
                yield pa.RecordBatch.from_pydict({"place": places, "result": results})
                places, results = [], []
        if places:
            yield pa.RecordBatch.from_pydict({"place": places, "result": results})

    numbers = session.range(0, len(units), 1, tasks)
    table = numbers.mapInArrow(compute_some, SCHEMA).toArrow()
    places, results = table.column("place").to_pylist(), table.column("result")
    assert sorted(places) == list(range(len(units)))
    for row in sorted(range(len(units)), key=places.__getitem__):
        yield pickle.loads(results[row].as_buffer())
