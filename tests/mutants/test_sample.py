"""A sample of the mutants, another one for each commit; all of them run in `make mutants`."""

from mutants.mutation import in_turn
from mutants.run import commit, tried
from mutants.table import MUTANTS
from mutants.trial import CAUGHT

BEGIN_S = 40.0  # none is begun after so long, so that all is over within a minute


def test_a_sample_of_the_mutants_is_caught() -> None:
    # Those with scenarios, and those whose tests run networks, take longer.
    quick = [m for m in MUTANTS if not m.scenario and all("tests/core/" in t for t in m.tests)]
    verdicts = list(tried(in_turn(quick, commit()), 1, BEGIN_S))
    assert verdicts
    missed = [(mutant.name, verdict) for mutant, verdict in verdicts if verdict.outcome != CAUGHT]
    assert missed == []
