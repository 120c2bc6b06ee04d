import json
from pathlib import Path

import numpy as np
import pytest

from anabranch.lab.experiment import OptionError
from anabranch.lab.workload import Workload, read

LINES = [
    {"kind": "topic", "name": "tea", "creator": "a", "events": 2},
    {"kind": "topic", "name": "coffee", "creator": "b", "events": 2},
    {"kind": "node", "node": "a", "subscriptions": ["coffee", "tea"], "events": [[1, "tea"]]},
    {"kind": "node", "node": "b", "subscriptions": ["tea"], "events": [[0, "coffee"], [3, "tea"]]},
    {"kind": "node", "node": "c", "subscriptions": [], "events": [[2, "coffee"]]},
]
WORKLOAD = Workload(("tea", "coffee"), ((0, 1), (0,), ()), ((1, 1), (0, 0), (2, 1), (1, 0)))


def written(path: Path, lines: list[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_topics_and_nodes_are_numbered_and_events_put_in_order(tmp_path: Path) -> None:
    assert read(written(tmp_path / "workload.jsonl", LINES)) == WORKLOAD


def test_who_should_get_what_of_others() -> None:
    assert WORKLOAD.subscribers().tolist() == [[True, True, False], [True, False, False]]
    assert WORKLOAD.expected().tolist() == [
        [True, False, False],  # b publishes of coffee and does not want any
        [False, True, False],
        [True, False, False],
        [True, False, False],
    ]
    assert np.array(WORKLOAD.expected()).sum() == 4


def test_a_cut_has_the_first_nodes_and_of_theirs_the_first_events() -> None:
    cut = WORKLOAD.cut(2, 2)
    assert (cut.nodes, cut.events) == (2, ((1, 1), (0, 0)))
    assert WORKLOAD.cut(2, None).events == ((1, 1), (0, 0), (1, 0))
    with pytest.raises(OptionError, match="has 3 nodes"):
        WORKLOAD.cut(4, None)
    silent = Workload(("tea",), ((0,), (0,)), ())
    with pytest.raises(OptionError, match="publish nothing"):
        silent.cut(2, None)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"kind": "cup"}, "line 6: Invalid value 'cup'"),
        ({"kind": "node", "node": "d", "subscriptions": []}, "line 6: .* required field `events`"),
        ({"kind": "node", "node": "d", "subscriptions": ["milk"], "events": []}, "topic 'milk'"),
        ({"kind": "node", "node": "d", "subscriptions": [], "events": [[9, "gin"]]}, "topic 'gin'"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, line: object, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        read(written(tmp_path / "workload.jsonl", [*LINES, line]))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.jsonl cannot be read: No such file"):
        read(tmp_path / "nowhere.jsonl")
