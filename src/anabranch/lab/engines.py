"""Engines beside the one that measures in turn: processes of this machine."""

import multiprocessing
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from anabranch.lab.experiment import Engine, Measure, Progress, Unit

CHUNKS_PER_PROCESS = 16  # fewer leave processes idle at the end, more cost their sending


def in_processes(jobs: int) -> Engine:
    """Return an engine with so many processes."""

    def engine(
        measure: Measure, units: Sequence[Unit], progress: Progress
    ) -> Generator[Any, None, None]:
        # A process that is forked would have this one's threads' locks, and none of the threads.
        fresh = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, fresh)
        try:
            results = pool.map(measure, units, chunksize=chunk_size(len(units), jobs))
            yield from counted(units, results, progress)
        finally:
            pool.shutdown(cancel_futures=True)

    return engine


def chunk_size(units: int, jobs: int) -> int:
    """Return how many units a process takes at a time."""
    return max(1, units // (jobs * CHUNKS_PER_PROCESS))


def counted(
    units: Sequence[Unit], results: Iterable[Any], progress: Progress
) -> Generator[Any, None, None]:
    """Yield the results, and tell how much of the work that was."""
    work = sum(unit.work for unit in units)
    done = 0
    for unit, result in zip(units, results, strict=True):
        done += unit.work
        progress(done / work)
        yield result
