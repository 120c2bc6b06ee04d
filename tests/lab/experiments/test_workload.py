import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anabranch.lab.experiment import OptionError, Params, Row, Samples
from anabranch.lab.experiments.workload import ALL, EXPERIMENT, draw, rows_of, share, table
from anabranch.lab.playback import Played
from anabranch.lab.workload import Workload

PUBLISHED = Path(__file__).parents[4] / "shared/data/pulsarcast-workload-25k.jsonl"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Five nodes, two topics, thirty events."""
    topics = [{"kind": "topic", "name": name} for name in ("tea", "coffee")]
    nodes = [
        {
            "kind": "node",
            "node": f"node-{node}",
            "subscriptions": ["tea", "coffee"] if node < 3 else ["tea"],
            "events": [[place, "coffee" if place < 5 else "tea"] for place in range(node, 30, 5)],
        }
        for node in range(5)
    ]
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*topics, *nodes]))
    return str(path)


def by_topic(rows: list[Row], network: str) -> dict[str, Row]:
    return {row["topic"]: row for row in rows if row["network"] == network}


def test_all_of_a_small_workload_comes_to_everybody(small: str) -> None:
    rows = list(EXPERIMENT.run(EXPERIMENT.params(nodes=(5,), data=small)))
    assert [(row["network"], row["topic"]) for row in rows] == [
        (network, topic) for network in ("normal", "latency") for topic in (ALL, "tea", "coffee")
    ]
    for network in ("normal", "latency"):
        found = by_topic(rows, network)
        # Three drink coffee and publish of it, two publish of it only.
        assert found["coffee"]["expected"] == 3 * 2 + 2 * 3
        assert found["tea"]["expected"] == 25 * 4
        assert found[ALL]["expected"] == found[ALL]["delivered"] == 112
        assert found[ALL]["subscriptions"] == found[ALL]["complete"] == 8
        assert {row["fulfilled"] for row in found.values()} == {1.0}
    far = by_topic(rows, "latency")[ALL]
    assert 200 < far["p50_ms"] < far["p99_ms"] <= far["max_ms"]
    assert by_topic(rows, "normal")[ALL]["p50_ms"] < 200


def test_rows_have_plain_keys_and_follow_from_the_seed(small: str) -> None:
    first, again, other = (
        list(EXPERIMENT.run(EXPERIMENT.params(nodes=(5,), data=small, events=10, seed=seed)))
        for seed in (1, 1, 2)
    )
    assert list(first[0]) == [
        *("nodes", "overlay", "ordered", "network", "topic", "events", "published", "expected"),
        *("delivered", "fulfilled", "fulfilled_of_published", "subscriptions", "complete"),
        *("mean_ms", "p50_ms", "p99_ms", "max_ms", "disorder", "busiest", "longest_wait_ms"),
        "repeats",
    ]
    assert first == again
    assert first != other


def test_a_bound_that_is_too_low_is_felt(small: str) -> None:
    slow, quick = (
        by_topic(
            list(
                EXPERIMENT.run(
                    EXPERIMENT.params(nodes=(5,), data=small, speedup=20, capacity=capacity)
                )
            ),
            "latency",
        )[ALL]
        for capacity in (30, 0)
    )
    assert slow["fulfilled"] == quick["fulfilled"] == 1
    assert slow["p99_ms"] > 1.5 * quick["p99_ms"]
    assert slow["busiest"] > 0.2
    assert quick["busiest"] == 0


def test_with_storage_nodes_everybody_reads_in_order(small: str) -> None:
    rows = list(EXPERIMENT.run(EXPERIMENT.params(nodes=(5,), data=small, speedup=20, ordered=True)))
    assert {row["ordered"] for row in rows} == {True}
    for network in ("normal", "latency"):
        found = by_topic(rows, network)[ALL]
        assert found["delivered"] == found["expected"] == 112
        assert (found["complete"], found["disorder"]) == (8, 0)


def test_what_is_missing_is_told() -> None:
    workload = Workload(("tea", "milk"), ((0, 1), (0,), (0,)), ((0, 0), (1, 0), (2, 1), (0, 0)))
    delays_s = np.where(workload.expected(), 0.25, np.nan)
    published = np.ones(4, dtype=bool)
    whole = Played(workload, delays_s, published, np.zeros(4, dtype=np.int64), 0.5, 0.1, [])
    lacking = delays_s.copy()
    lacking[0, 1] = lacking[3] = np.nan  # one delivery lost, and one event that never left
    poor = replace(
        whole,
        delays_s=lacking,
        published=np.array([True, True, True, False]),
        disorder=np.array([0, 2, 0, 0]),
        busiest=0.75,
    )
    found = {row["topic"]: row for row in rows_of(workload, [whole, poor])}
    assert list(found) == [ALL, "tea", "milk"]
    tea, milk, both = found["tea"], found["milk"], found[ALL]
    assert (tea["events"], tea["published"]) == (6, 5)
    assert (tea["expected"], tea["delivered"]) == (12, 9)
    assert tea["fulfilled"] == 0.75
    assert tea["fulfilled_of_published"] == 0.9
    assert (tea["subscriptions"], tea["complete"]) == (6, 4)
    assert (tea["disorder"], milk["disorder"], both["disorder"]) == (2, 0, 2)
    assert (milk["fulfilled"], milk["subscriptions"], milk["complete"]) == (1.0, 2, 2)
    assert (both["subscriptions"], both["complete"]) == (8, 6)
    assert (both["busiest"], both["mean_ms"]) == (0.75, 250)


def test_a_share_is_one_only_if_nothing_is_missing() -> None:
    assert share(10**9 - 1, 10**9) < 1
    assert share(3, 4) == 0.75
    assert share(4, 4) == share(0, 0) == 1
    assert share(0, 4) == 0


def test_progress_ends_at_one(small: str) -> None:
    heard: list[float] = []
    list(EXPERIMENT.run(EXPERIMENT.params(nodes=(3, 5), data=small, events=4), heard.append))
    assert heard == sorted(heard)
    assert (len(heard), heard[-1]) == (16, 1)


def test_table_and_picture(small: str, tmp_path: Path) -> None:
    samples = Samples()
    rows = list(EXPERIMENT.run(EXPERIMENT.params(nodes=(5,), data=small), samples=samples))
    shown = table(rows)
    assert list(shown.columns[2].cells) == ["100 (100)"] * 2
    assert list(shown.columns[3].cells) == ["99 (99)", "51 (86)"]
    assert list(shown.columns[5].cells) == ["41 (41)", "31 (31)"]
    assert list(shown.columns[6].cells) == ["8/8"] * 2
    nearly = [row | {"fulfilled": 0.999999} for row in rows]
    assert list(table(nearly).columns[2].cells) == ["99.9 (100)"] * 2
    assert len(samples[5]) == 112
    kept = [(each["network"], each["topic"]) for each in samples.topologies]
    assert len(kept) == len(set(kept)) == 2 * len({topic for _, topic in kept})
    assert all(each["links"] for each in samples.topologies)
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_file_must_be_named() -> None:
    with pytest.raises(OptionError, match="workload needs --data"):
        EXPERIMENT.params()


@pytest.mark.skipif(not PUBLISHED.exists(), reason=f"{PUBLISHED.name} is not beside the project")
def test_the_beginning_of_the_published_workload_comes_to_all_hundred_nodes() -> None:
    params: Params = EXPERIMENT.params(data=str(PUBLISHED), events=250)
    rows = list(EXPERIMENT.run(params))
    for network in ("normal", "latency"):
        found = by_topic(rows, network)[ALL]
        assert found["events"] == found["published"] == 250
        assert found["delivered"] == found["expected"] > 20_000
        assert found["complete"] == found["subscriptions"] > 400
        assert 0.1 < found["busiest"] < 0.9
