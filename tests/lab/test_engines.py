import pytest

from anabranch.lab.engines import chunk_size, counted, in_processes
from anabranch.lab.experiment import Params, Unit, unseen
from anabranch.lab.experiments.randomness import EXPERIMENT


def test_processes_find_the_same_rows() -> None:
    params = Params((8, 12), 40, seed=5)
    heard: list[float] = []
    rows = list(EXPERIMENT.run(params, heard.append, engine=in_processes(2)))
    assert rows == list(EXPERIMENT.run(params))
    assert heard == sorted(heard)
    assert (len(heard), heard[-1]) == (80, 1)


def test_processes_end_when_nobody_wants_more() -> None:
    units = EXPERIMENT.cut(Params((8,), 40))
    results = in_processes(1)(EXPERIMENT.measure, units, unseen)
    next(results)
    results.close()
    with pytest.raises(StopIteration):
        next(results)


def test_few_units_are_sent_one_by_one() -> None:
    assert [chunk_size(units, 2) for units in (1, 31, 64, 1000)] == [1, 1, 2, 31]


def test_progress_is_by_work() -> None:
    params = Params((2,))
    units = [Unit(params, 2, work=work) for work in (1, 3)]
    heard: list[float] = []
    assert list(counted(units, "ab", heard.append)) == ["a", "b"]
    assert heard == [0.25, 1]
    with pytest.raises(ValueError, match="shorter"):
        list(counted(units, "a", heard.append))
