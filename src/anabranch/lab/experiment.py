"""What an experiment is: its options, the units it is cut into, and what becomes of the results."""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.lab.underlays import PROCESSING_MS, check_underlay
from anabranch.overlays import OVERLAYS

Row = dict[str, Any]  # plain keys; numbers and strings


class Samples(dict[int, NDArray[np.float64]]):
    """By the number of nodes: what a picture shows of a row; and one topology of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.topologies: list[dict[str, Any]] = []

    def keep_topology(
        self, nodes: int, seed: str, links: NDArray[np.int64], **more: int | str
    ) -> None:
        """Keep the links of the first of a row's topologies; the others follow from their seeds."""
        found = {"nodes": nodes, "seed": seed, **more, "links": links.tolist()}
        self.topologies.append(found)


# These every experiment has; of the others each says which it has.
COMMON_OPTIONS = frozenset({"nodes", "repeats", "degree", "seed"})
MODES = ("sim", "live", "both")

# How long overlays that go on improving when they have settled are given for it; others, nothing.
LEARNING_S = {"latency-aware": 300.0}


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
    data: str | None = None  # the file that an experiment reads
    events: int | None = None  # how many of the file's; None: all
    speedup: float = 1.0  # how much faster than in the paper they come
    capacity: float = 0.0  # packets that a node takes in a second; 0: any number
    processing_ms: float | None = None  # of every hop; None: as the underlay has it
    learning_s: float | None = None  # simulated, before measuring; None: as the overlay has it
    legacy_status: bool = False  # whether nodes and tracker talk as paper 001, section 4.3, has it
    ordered: bool = False  # whether storage nodes help all to read in order
    mode: str = "both"  # simulated, or live between real processes
    traces: str | None = None  # the folder to leave traces in; the rows do not depend on it

    def __post_init__(self) -> None:
        if min(self.nodes, default=0) < 2:
            raise OptionError("--nodes must be 2 or more, for example --nodes 32,64")
        if self.repeats is not None and self.repeats < 1:
            raise OptionError("--repeats must be 1 or more")
        if self.degree < 2:
            raise OptionError("--degree must be 2 or more: less does not connect the nodes")
        if self.events is not None and self.events < 1:
            raise OptionError("--events must be 1 or more")
        if not 0 < self.speedup < math.inf:
            raise OptionError("--speedup must be above 0: 1 is the paper's pace, 2 twice that")
        if not 0 <= self.capacity < math.inf:
            raise OptionError("--capacity must be 0, for no bound, or packets a second")
        if self.processing_ms is not None and not 0 <= self.processing_ms < math.inf:
            raise OptionError("--processing-ms must be 0 or more")
        if self.learning_s is not None and not 0 <= self.learning_s < math.inf:
            raise OptionError("--learning-s must be 0 or more")
        if self.legacy_status and (self.traces or self.learning_s):
            raise OptionError("--legacy-status is a model: leave out --traces and --learning-s")
        if self.overlay not in OVERLAYS:
            raise OptionError(f"--overlay must be one of: {', '.join(OVERLAYS)}")
        if self.mode not in MODES:
            raise OptionError(f"--mode must be one of: {', '.join(MODES)}")
        try:
            check_underlay(self.underlay)
        except ValueError as error:
            raise OptionError(str(error)) from error

    @property
    def underlay_name(self) -> str:
        """Return the underlay's name, which for a file is the same in whatever folder it lies."""
        return Path(self.underlay).name

    @property
    def processing_s(self) -> float:
        """Return how long a node is busy with what it passes on."""
        if self.processing_ms is None:
            return PROCESSING_MS.get(self.underlay, 0.0) / 1000
        return self.processing_ms / 1000

    @property
    def learning(self) -> float:
        """Return for how many simulated seconds an overlay runs before it is measured."""
        return LEARNING_S.get(self.overlay, 0.0) if self.learning_s is None else self.learning_s

    def seed_of(self, nodes: int, repeat: int) -> str:
        """Return the seed of one repeat."""
        return f"{self.seed}/{nodes}/{repeat}"


class Progress(Protocol):
    """Hears how much of the work is done, from 0 to 1."""

    def __call__(self, done: float, /) -> None: ...


def unseen(done: float, /) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Unit:
    """A piece of an experiment that is measured by itself, by whichever process."""

    params: Params
    nodes: int
    repeat: int = 0
    work: int = 1  # how much there is to do, beside other units

    @property
    def seed(self) -> str:
        """Return the seed that all randomness of this unit comes from."""
        return self.params.seed_of(self.nodes, self.repeat)


class Cut(Protocol):
    """Cuts an experiment into units."""

    def __call__(self, params: Params) -> Sequence[Unit]: ...


class Measure(Protocol):
    """Measures a unit; what it returns can be sent to another process, as the unit can.

    It is a function at the top of a module, where another process finds it.
    """

    def __call__(self, unit: Any, progress: Progress = ...) -> Any: ...


class MakeRows(Protocol):
    """Makes rows of the results, which come in the order of the units.

    It leaves in `samples` what pictures need.
    """

    def __call__(
        self, params: Params, results: Iterator[Any], samples: Samples | None
    ) -> Iterator[Row]: ...


class Engine(Protocol):
    """Measures units, here or elsewhere, and yields the results in the order of the units."""

    def __call__(
        self, measure: Measure, units: Sequence[Unit], progress: Progress
    ) -> Generator[Any, None, None]: ...


def in_turn(
    measure: Measure, units: Sequence[Unit], progress: Progress
) -> Generator[Any, None, None]:
    """Measure one unit after the other, in this process."""
    work = sum(unit.work for unit in units)
    before = 0
    for unit in units:

        def within(done: float, /, before: int = before, unit: Unit = unit) -> None:
            progress((before + done * unit.work) / work)

        yield measure(unit, within)
        before += unit.work


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
    cut: Cut
    measure: Measure
    rows: MakeRows
    table: MakeTable
    draw: Draw
    options: frozenset[str] = frozenset()  # beyond the common ones
    needs: frozenset[str] = frozenset()  # those that have no default
    most_nodes: int = 1_000_000

    def params(self, **given: Any) -> Params:
        """Return the defaults with what is given (None is not), or raise OptionError."""
        given = {option: value for option, value in given.items() if value is not None}
        for option in sorted(given.keys() - self.options - COMMON_OPTIONS):
            raise OptionError(f"{self.name} takes no --{option.replace('_', '-')}: leave it out")
        for option in sorted(self.needs - given.keys()):
            raise OptionError(f"{self.name} needs --{option}: name the file that it reads")
        params = replace(self.defaults, **given)
        if max(params.nodes) > self.most_nodes:
            raise OptionError(f"{self.name} takes at most --nodes {self.most_nodes}")
        return params

    def run(
        self,
        params: Params,
        progress: Progress = unseen,
        samples: Samples | None = None,
        engine: Engine = in_turn,
    ) -> Iterator[Row]:
        """Yield the rows, which are the same whatever the engine."""
        with closing(engine(self.measure, self.cut(params), progress)) as results:
            yield from self.rows(params, results, samples)

    def options_of(self, params: Params) -> dict[str, Any]:
        """Return the options that the rows are a function of."""
        return {
            option: value
            for option, value in asdict(params).items()
            if option in (self.options | COMMON_OPTIONS) - {"traces"}
        }
