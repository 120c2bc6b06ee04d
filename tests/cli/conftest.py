"""One small network of processes that the tests of the command line share."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import COMMAND, PATIENCE_S, Json, next_line
from support.processes import child
from support.waiting import limit

Network = tuple[Path, Json]  # the file of the profiles, and what `up` said


@pytest.fixture(scope="session")
def shared_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    config = tmp_path_factory.mktemp("shared") / "config.toml"
    environment = os.environ | {"ANABRANCH_CONFIG": str(config)}
    environment.pop("ANABRANCH_PROFILE", None)
    with child(
        [*COMMAND, "up", "--nodes", "2", "--port", "0", "--json", "--with-parent"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield config, next_line(process)
        # Closing its standard input asks it to end, and reading the others waits for that.
        out, err = process.communicate(timeout=limit(PATIENCE_S))
        assert (out, err, process.returncode) == ("", "", 0)


@pytest.fixture
def network(shared_network: Network, monkeypatch: pytest.MonkeyPatch) -> Json:
    """Make the shared network the current one; return what its `up` said of it."""
    config, ready = shared_network
    monkeypatch.setenv("ANABRANCH_CONFIG", str(config))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
    return ready
