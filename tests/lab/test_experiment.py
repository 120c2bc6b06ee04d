import pickle
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from anabranch.lab.experiment import Measure, Params, Progress, Unit, in_turn, unseen
from anabranch.lab.experiments import EXPERIMENTS
from anabranch.lab.experiments.randomness import EXPERIMENT


def test_progress_is_that_of_all_units() -> None:
    def measure(unit: Unit, progress: Progress = unseen) -> int:
        progress(0.5)
        progress(1)
        return unit.nodes

    units = [Unit(Params((2,)), nodes, work=work) for nodes, work in ((4, 1), (5, 3))]
    heard: list[float] = []
    assert list(in_turn(measure, units, heard.append)) == [4, 5]
    assert heard == [0.125, 0.25, 0.625, 1]


@pytest.mark.parametrize("name", ["aws16", "randomness", "propagation", "diameter", "redundancy"])
def test_units_and_results_can_be_sent(name: str) -> None:
    experiment = EXPERIMENTS[name]
    params = experiment.params(nodes=(4, 8), repeats=2)
    units = experiment.cut(params)
    assert pickle.loads(pickle.dumps(units)) == units

    def elsewhere(
        measure: Measure, units: Sequence[Unit], progress: Progress
    ) -> Generator[Any, None, None]:
        for unit in pickle.loads(pickle.dumps(units)):
            yield pickle.loads(pickle.dumps(measure(unit)))

    assert list(experiment.run(params, engine=elsewhere)) == list(experiment.run(params))


def test_units_have_seeds_of_their_own() -> None:
    units = EXPERIMENT.cut(Params((8, 9), 3, seed=7))
    assert [unit.seed for unit in units[:2]] == ["7/8/0", "7/8/1"]
    assert len({unit.seed for unit in units}) == 6


def test_an_engine_is_closed_when_the_rows_are_made() -> None:
    ended = []

    def engine(
        measure: Measure, units: Sequence[Unit], progress: Progress
    ) -> Generator[Any, None, None]:
        try:
            yield from in_turn(measure, units, progress)
        finally:
            ended.append(True)

    rows = EXPERIMENT.run(Params((8,), 2), engine=engine)
    next(rows)
    assert ended == []
    assert list(rows) == []
    assert ended == [True]
