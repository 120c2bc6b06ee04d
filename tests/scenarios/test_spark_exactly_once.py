"""Streams through Spark while its driver is killed, and a storage node: every message once."""

from pathlib import Path

from live.networks import run
from spark.kills import copy_under_kills

KILLS = 3
SEED = 3


def test_every_message_is_copied_once(tmp_path: Path) -> None:
    outcome = run(copy_under_kills(tmp_path, KILLS, SEED), 420.0)
    assert outcome.wrong == []
    assert outcome.published > 1_000
    assert sum(outcome.cut_off.values()) > 0  # else no batch had to be done again
