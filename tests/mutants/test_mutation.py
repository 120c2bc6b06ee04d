"""How mutants are found, applied and judged, and that every one of the table fits the tree."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mutants.mutation import ROOT, SOURCES, Mutant, StaleError, in_turn
from mutants.network import NETWORK
from mutants.security import SECURITY
from mutants.table import ATTACKS, MUTANTS
from mutants.trial import BROKEN, CAUGHT, FAILED, STALE, SURVIVED, Copy

SOURCE = """
def outside(a):
    return a

class Gate:
    def open(self, key):
        if key != self.key:
            raise KeyError
        return self.room

    def shut(self, key):
        if key != self.key:
            raise KeyError
"""


def mutant(place: str, old: str, new: str) -> Mutant:
    return Mutant("a rule", place, old, new, ("tests/test_x.py::test_x",))


def test_applied_changes_the_named_function_alone() -> None:
    changed = mutant("x:Gate.shut", "if key != self.key:", "if not key:").applied(SOURCE)
    assert changed.count("if key != self.key:") == 1
    assert changed.index("if key != self.key:") < changed.index("if not key:")


def test_applied_replaces_several_lines_at_their_indentation() -> None:
    old = "if key != self.key:\n    raise KeyError"
    changed = mutant("x:Gate.open", old, "if not key:\n    return None").applied(SOURCE)
    assert "        if not key:\n            return None\n        return self.room" in changed


@pytest.mark.parametrize(
    ("place", "old", "new", "why"),
    [
        ("x:Gate.open", "if nothing:", "", "0 times in x:Gate.open"),
        ("x:Gate", "if key != self.key:", "if key:", "2 times in x:Gate"),
        ("x:Gate.close", "if key:", "", "there is no Gate.close"),
        ("x:outside", "return a", "return (", "is not Python"),
    ],
)
def test_applied_to_another_source_is_stale(place: str, old: str, new: str, why: str) -> None:
    with pytest.raises(StaleError, match=re.escape(why)):
        mutant(place, old, new).applied(SOURCE)


def test_in_turn_depends_on_the_salt_alone() -> None:
    some = list(MUTANTS)[:20]
    assert in_turn(some, "a") == in_turn(reversed(some), "a")
    assert in_turn(some, "a") != in_turn(some, "b")
    assert set(in_turn(some, "b")) == set(some)


def test_every_mutant_of_the_table_fits_the_tree() -> None:
    stale = []
    for each in MUTANTS:
        try:
            each.applied((SOURCES / each.path).read_text())
        except (StaleError, FileNotFoundError) as error:
            stale.append(f"{each.name}: {error}")
    assert stale == []


def test_mutants_have_names_and_tests_of_their_own() -> None:
    assert [n for n, count in Counter(m.name for m in MUTANTS).items() if count > 1] == []
    for each in MUTANTS:
        assert each.tests, each.name
        for test in each.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            assert re.search(rf"def {name.partition('[')[0]}\(", text), f"{each.name}: {test}"
    assert set(ATTACKS) == {*SECURITY, *NETWORK}
    assert all(each.row is not None for each in ATTACKS)


def test_a_trial_tells_caught_from_survived_broken_and_stale(tmp_path: Path) -> None:
    place = "anabranch.core.timers:Timers.pop_due"
    test = "tests/core/test_timers.py"
    lines = (SOURCES / "anabranch/core/timers.py").read_text()
    assert "def pop_due" in lines
    copy = Copy(tmp_path)
    first = "def pop_due(self, now: float)"
    rotten = Mutant("wrong name", place, first, "def pop_none(self, now: float)", (test,))
    assert copy.try_out(rotten).outcome == CAUGHT
    same = Mutant("no change", place, first, first, (test,))
    assert copy.try_out(same).outcome == SURVIVED
    module = Mutant("no import", "anabranch.core.timers:", "class Timers", "class Times", (test,))
    assert copy.try_out(module).outcome == BROKEN
    assert copy.try_out(mutant(place, "no such text", "")).outcome == STALE
    assert (copy.sources / "anabranch/core/timers.py").read_text() == lines


def test_failures_are_read_from_the_summary() -> None:
    said = "FAILED tests/a.py::test_b[x] - assert 1 == 2\nERROR tests/c.py::test_d\nFAILED no\n"
    assert FAILED.findall(said) == ["tests/a.py::test_b[x]", "tests/c.py::test_d", "no"]
