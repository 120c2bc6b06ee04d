"""What an experiment is: its options, and three functions to run, tabulate and draw it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.lab.underlays import UNDERLAYS
from anabranch.overlays import OVERLAYS

Row = dict[str, Any]  # plain keys; numbers and strings
Samples = dict[int, NDArray[np.float64]]  # by the number of nodes: what a picture shows of a row


class OptionError(ValueError):
    """An option that cannot be; the message says what to do instead."""


@dataclass(frozen=True)
class Params:
    """The options of a run: the rows are a function of these."""

    nodes: tuple[int, ...]
    repeats: int | None = None  # None: as many as the experiment finds right for the size
    degree: int = DEFAULT_DEGREE
    seed: int = 1
    overlay: str = "random-regular"
    underlay: str = "aws16"

    def __post_init__(self) -> None:
        if min(self.nodes, default=0) < 2:
            raise OptionError("--nodes must be 2 or more, for example --nodes 32,64")
        if self.repeats is not None and self.repeats < 1:
            raise OptionError("--repeats must be 1 or more")
        if self.degree < 2:
            raise OptionError("--degree must be 2 or more: less does not connect the nodes")
        for option, known in (("overlay", OVERLAYS), ("underlay", UNDERLAYS)):
            if getattr(self, option) not in known:
                raise OptionError(f"--{option} must be one of: {', '.join(known)}")

    def seed_of(self, nodes: int, repeat: int) -> str:
        """Return the seed of one repeat."""
        return f"{self.seed}/{nodes}/{repeat}"


class Progress(Protocol):
    """Hears how much of the work is done, from 0 to 1."""

    def __call__(self, done: float, /) -> None: ...


def unseen(done: float, /) -> None:
    """Show no progress."""


class Run(Protocol):
    """Yields one row for each number of nodes, and leaves in `samples` what pictures need."""

    def __call__(
        self, params: Params, progress: Progress = ..., samples: Samples | None = ...
    ) -> Iterator[Row]: ...


class MakeTable(Protocol):
    """Puts the paper's figures beside ours."""

    def __call__(self, rows: Sequence[Row]) -> Table: ...


class Draw(Protocol):
    """Writes the paper's figure, of our rows, as a PNG."""

    def __call__(self, rows: Sequence[Row], samples: Samples, path: Path) -> None: ...


@dataclass(frozen=True)
class Experiment:
    """One experiment of a paper."""

    name: str
    title: str
    about: str
    defaults: Params
    run: Run
    table: MakeTable
    draw: Draw
    options: frozenset[str] = frozenset()  # beyond nodes, repeats, degree and seed
    most_nodes: int = 1_000_000

    def params(self, **given: Any) -> Params:
        """Return the defaults with what is given (None is not), or raise OptionError."""
        given = {option: value for option, value in given.items() if value is not None}
        for option in sorted(given.keys() & {"overlay", "underlay"} - self.options):
            raise OptionError(f"{self.name} takes no --{option}: leave it out")
        params = replace(self.defaults, **given)
        if max(params.nodes) > self.most_nodes:
            raise OptionError(f"{self.name} takes at most --nodes {self.most_nodes}")
        return params
