"""What experiments over several degrees share: their units, and random regular graphs as arrays."""

import random
from dataclasses import dataclass

import numpy as np

from anabranch.lab.experiment import Params, Unit
from anabranch.lab.kernels import Ints
from anabranch.overlays.regular_graph import RegularGraph

LEAST_DEGREE, STEP = 4, 2  # the papers' figures have 4, 6, ..., 16


@dataclass(frozen=True)
class DegreeUnit(Unit):
    """One topology of one degree."""

    degree: int = LEAST_DEGREE

    @property
    def seed(self) -> str:
        """Return the seed that all randomness of this unit comes from."""
        return f"{super().seed}/{self.degree}"


def degrees_of(params: Params) -> list[int]:
    """Return the papers' degrees up to the one that is given."""
    return list(range(LEAST_DEGREE, params.degree + 1, STEP)) or [params.degree]


def random_links(nodes: int, degree: int, seed: str) -> Ints:
    """Return the links of a random regular graph, as a tracker makes it of nodes that join."""
    graph = RegularGraph[int](degree, random.Random(seed))
    for node in range(nodes):
        graph.join(node)
    return np.sort(np.array(graph.links(), dtype=np.int64).reshape(-1, 2), axis=1)
