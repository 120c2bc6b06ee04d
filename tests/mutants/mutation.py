"""A mutant: one safety rule, a change that breaks it, and the tests that must then fail."""

import ast
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


class StaleError(Exception):
    """The mutant no longer fits the source: its place or its text is gone."""


@dataclass(frozen=True)
class Row:
    """A row of docs/security.md: an attacker, an attempt, and its outcome."""

    who: str
    tries: str
    outcome: str


@dataclass(frozen=True)
class Mutant:
    """One rule and one change that breaks it."""

    name: str
    place: str  # module:Qualified.name of a function, or of a module alone
    old: str  # source text that occurs once there; leading blanks of its lines do not count
    new: str
    tests: tuple[str, ...]  # every one of them must fail
    scenario: str = (
        ""  # random, random-trust, random-storage or random-calm: one of the seeds must fail
    )
    seeds: int = 0
    row: Row | None = None

    @property
    def path(self) -> Path:
        """The file below src/ that is changed."""
        return Path(*self.place.partition(":")[0].split(".")).with_suffix(".py")

    def applied(self, source: str) -> str:
        """Return the source of the file with the change."""
        first, last = span(source, self.place.partition(":")[2])
        lines = source.splitlines(keepends=True)
        old = [line.strip() for line in self.old.strip().splitlines()]
        found = [at for at in range(first, last) if fits(lines, at, last, old)]
        if len(found) != 1:
            times = f"{len(found)} times in {self.place}"
            raise StaleError(f"{self.name}: {times}: {self.old.strip()!r}")
        [at] = found
        end = at + len(old)
        if len(old) == 1:
            changed = [lines[at].replace(old[0], self.new.strip(), 1)]
            if lines[at].count(old[0]) != 1:
                raise StaleError(f"{self.name}: more than once on one line: {old[0]!r}")
            changed = indented(changed[0], lines[at]) if "\n" in self.new.strip() else changed
        else:
            changed = indented(self.new.strip() + "\n", lines[at])
        mutated = "".join([*lines[:at], *changed, *lines[end:]])
        try:
            compile(mutated, str(self.path), "exec")
        except SyntaxError as error:
            raise StaleError(f"{self.name}: what it makes is not Python: {error}") from error
        return mutated


def fits(lines: Sequence[str], at: int, last: int, old: Sequence[str]) -> bool:
    """Tell whether the text begins in this line; several lines must be whole ones."""
    if len(old) == 1:
        return old[0] in lines[at]
    return at + len(old) <= last and all(
        line.strip() == text for line, text in zip(lines[at:], old, strict=False)
    )


def indented(text: str, like: str) -> list[str]:
    """Indent each line of a text as a line is; what is indented within the text stays so."""
    blanks = like[: len(like) - len(like.lstrip())]
    lines = [line.removeprefix(blanks) for line in text.splitlines()]
    return [f"{blanks}{line}\n" if line else "\n" for line in lines]


def span(source: str, qualified: str) -> tuple[int, int]:
    """Return the first line of a function or class and the line after it, counted from 0."""
    tree: ast.AST = ast.parse(source)
    first, last = 0, len(source.splitlines())
    for name in qualified.split(".") if qualified else ():
        named = [
            node
            for node in ast.iter_child_nodes(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if node.name == name
        ]
        if not named:
            raise StaleError(f"there is no {qualified}")
        tree = named[-1]
        first = min([tree.lineno, *(each.lineno for each in tree.decorator_list)]) - 1
        last = tree.end_lineno or last
    return first, last


def in_turn(mutants: Iterable[Mutant], salt: str) -> list[Mutant]:
    """Return the mutants in an order that depends on nothing but their names and the salt."""
    return sorted(mutants, key=lambda m: hashlib.sha256(f"{salt} {m.name}".encode()).digest())
