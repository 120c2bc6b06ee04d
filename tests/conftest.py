"""What holds for every test.

Hypothesis draws the same examples in every run: a failure on one machine is one on all. Profiles
and keys are kept in a folder of the run's own, and never in that of whoever runs the tests.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from support.processes import Watch, restore_signals

# Deadlines and the too_slow check read the wall clock, so a loaded machine could fail them.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
restore_signals()
WATCH = Watch()

# Tests of Spark want all cores, and to start it costs more than most of them: one process does all
# that need one session, and another those that start it themselves; beside them run tests that
# mostly wait for the network. What takes longest begins first.
CLUSTERS, SPARK, EXAMPLES = "clusters", "spark", "tests/test_examples.py"
TURNS = {CLUSTERS: 0, SPARK: 1, EXAMPLES: 2}


def group_of(nodeid: str) -> str:
    """Return which tests belong together: those of a file, or of Spark."""
    file = nodeid.partition("::")[0]
    if not file.startswith(("tests/spark/", "tests/scenarios/test_spark")):
        return file
    starts_it = file.endswith("_cluster.py") or file.startswith("tests/scenarios/")
    return CLUSTERS if starts_it else SPARK


class SparkApart(LoadScopeScheduling):
    """Gives a process all tests of a group at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkApart:
    """Let processes take groups of tests, in their order."""
    config.option.loadscopereorder = False
    return SparkApart(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first."""
    items.sort(key=lambda item: TURNS.get(group_of(item.nodeid), len(TURNS)))


@pytest.fixture(scope="session", autouse=True)
def own_config() -> Iterator[None]:
    """Let nothing be written where the user of this machine keeps profiles and keys."""
    before = os.environ.get("ANABRANCH_CONFIG")
    with tempfile.TemporaryDirectory(prefix="anabranch-tests-") as folder:
        os.environ["ANABRANCH_CONFIG"] = str(Path(folder, "config.toml"))
        yield
        if before is None:
            del os.environ["ANABRANCH_CONFIG"]
        else:
            os.environ["ANABRANCH_CONFIG"] = before


@pytest.fixture(autouse=True)
def own_processes() -> Iterator[None]:
    """Let no process outlive its test."""
    WATCH.begin()
    yield
    if left := WATCH.left():
        pytest.fail(f"processes that the test has left: {left}")
