"""What Spark costs a sweep: topologies of `propagation` through it, beside a pool of processes.

Both measure the same topologies on two cores, in turns because machines drift, and their rows
must be the same. The figure is the ratio of the wall times. The starts are left aside: before,
each has measured some topologies, so that Spark's session and the processes of both stand.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from anabranch.lab.engines import chunk_size
from anabranch.lab.experiment import Engine, Measure, Params, Progress, Row, Unit, unseen
from anabranch.lab.experiments.propagation import EXPERIMENT
from anabranch.spark.session import own_session
from anabranch.spark.sweep import SETTINGS, fan_out

TOPOLOGIES = 1_000
NODES = 32
PROCESSES = 2
ROUNDS = 2
WARM_UP = 32  # topologies
BAR = 1.3

Map = Callable[[Measure, Sequence[Unit]], Any]


def engine_of(compute: Map) -> Engine:
    """Make an engine of what computes units in their order."""

    def engine(
        measure: Measure, units: Sequence[Unit], progress: Progress
    ) -> Generator[Any, None, None]:
        yield from compute(measure, units)

    return engine


def sweep(engine: Engine, nodes: int, topologies: int) -> tuple[float, list[Row]]:
    """Return the seconds and the rows."""
    began = time.perf_counter()
    rows = list(EXPERIMENT.run(Params((nodes,), topologies), unseen, None, engine))
    return time.perf_counter() - began, rows


def compare(nodes: int, topologies: int, rounds: int) -> dict[str, float]:
    """Sweep with both, in turns; the figures are the medians."""
    fresh = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(PROCESSES, fresh) as pool,
        own_session("benchmark", f"local[{PROCESSES}]", **SETTINGS) as session,
    ):
        chunk = chunk_size(topologies, PROCESSES)
        in_pool = engine_of(lambda measure, units: pool.map(measure, units, chunksize=chunk))
        on_spark = engine_of(lambda measure, units: fan_out(session, measure, units))
        engines = {"pool_s": in_pool, "spark_s": on_spark}
        took: dict[str, list[float]] = {name: [] for name in engines}
        for engine in engines.values():
            sweep(engine, nodes, WARM_UP)
        for _ in range(rounds):
            found = []
            for name, engine in engines.items():
                seconds, rows = sweep(engine, nodes, topologies)
                took[name].append(seconds)
                found.append(rows)
            assert found[0] == found[1], "the rows differ"
    medians = {name: statistics.median(each) for name, each in took.items()}
    ratios = [a / b for a, b in zip(took["spark_s"], took["pool_s"], strict=True)]
    return medians | {"ratio": statistics.median(ratios)}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--topologies", type=int, default=TOPOLOGIES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = compare(options.nodes, options.topologies, options.rounds)
    row = {"topologies": options.topologies, "nodes": options.nodes} | figures | {"bar": BAR}
    text = (
        "{topologies} topologies of {nodes} nodes: {spark_s:.1f} s through Spark, {pool_s:.1f} s "
        "through a pool of processes: ratio {ratio:.2f}, of at most {bar}"
    )
    print(json.dumps(row) if options.json else text.format(**row))


if __name__ == "__main__":
    main()
