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

# Deadlines and the too_slow check read the wall clock, so a loaded machine could fail them.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")

# Tests of Spark want all cores, and to start it costs more than most of them: one process does
# them all, in one session, while the others do tests that mostly wait for the network.
SPARK = ("tests/spark/", "tests/scenarios/test_spark")


class SparkApart(LoadScopeScheduling):
    """Gives a process all tests of a file at a time, or all tests of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith(SPARK) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkApart:
    """Say which tests belong together; the largest group is begun first."""
    return SparkApart(config, log)


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
