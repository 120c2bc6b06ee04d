"""The networks below the overlays: where nodes lie, and the delays between them.

`AWS16` is the network of the Streamr experiments: 16 regions of Amazon, with the mean one-way
delays that its authors measured between 1024 machines (paper 001, Table 5.1; paper 000, Table 1
has the same figures). A file with a table of delays is an underlay, too: see delay_tables.py;
and geography.py has those that follow from where nodes lie.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path

from anabranch.lab.delay_tables import DelayTable, from_file, read_table
from anabranch.lab.geography import Cities, Square
from anabranch.sim.network import Constant, Plane, Underlay

REGIONS = (
    *("eu-central-1", "eu-west-1", "eu-west-2", "eu-west-3", "eu-north-1"),
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1"),
    *("ap-south-1", "ap-northeast-2", "ap-southeast-1", "ap-southeast-2", "ap-northeast-1"),
    "sa-east-1",
)
TRACKER_REGION = "eu-west-1"  # paper 000, section V-C.1
INSIDE_MS = 0.1  # within a region; the paper puts it in place of the diagonal below

# From the region of the row to the region of the column, in milliseconds, as printed.
_TABLE_MS = """
0.08 12.59 7.54 4.47 10.88 42.93 48.35 72.00 82.26 49.97 54.22 132.85 83.90 140.63 126.86 102.74
11.49 0.13 5.94 9.08 18.69 35.46 47.66 69.64 67.02 39.05 61.15 122.02 90.11 126.88 111.99 92.27
6.56 4.86 0.07 3.82 12.67 37.95 42.73 67.90 65.70 44.02 54.30 124.00 89.26 136.15 104.59 97.34
4.50 8.91 3.59 0.07 14.38 39.18 44.51 68.60 78.24 46.07 52.27 135.19 83.26 136.62 122.24 99.28
10.42 17.43 12.42 14.02 0.07 51.10 57.97 82.06 84.86 56.20 65.91 142.86 98.90 147.24 131.77 109.89
42.92 35.15 37.90 39.27 52.29 0.46 5.67 29.99 37.46 7.60 90.78 92.47 119.30 98.54 80.27 60.37
48.19 47.71 43.52 44.66 58.11 5.71 0.13 25.32 34.53 12.81 95.13 92.30 112.00 93.70 79.11 65.69
72.37 72.21 67.68 68.72 82.09 30.16 25.80 0.10 10.78 38.51 115.94 68.02 89.35 68.28 55.97 95.03
78.10 61.46 69.01 76.24 83.93 39.99 35.05 10.21 0.14 33.44 114.57 61.17 86.59 68.72 49.72 90.04
49.75 39.07 44.00 46.92 56.49 7.05 12.81 38.63 32.87 0.08 97.24 91.35 112.87 97.98 77.61 62.62
54.27 59.42 56.24 53.26 64.63 91.46 95.20 120.20 109.85 97.84 0.11 77.85 26.03 69.67 65.77 151.04
134.19 119.23 123.99 135.35 142.88 93.07 92.08 67.09 61.21 91.61 79.62 0.11 51.44 73.50 16.75 148.06
88.68 88.85 84.70 83.30 97.66 114.67 114.57 87.74 81.18 112.62 30.73 51.43 0.09 45.08 42.18 169.35
141.22 128.98 136.56 137.16 147.65 98.11 93.66 68.06 68.97 97.82 69.60 73.50 45.09 0.08 52.74 154.67
125.07 105.30 104.35 122.96 128.86 80.23 79.29 55.95 51.05 78.04 68.14 16.26 39.98 52.71 0.08 134.58
103.01 91.93 96.37 99.29 109.92 58.02 64.88 94.69 89.59 62.63 151.45 148.29 172.1 154.62 134.45 0.15
"""
TABLE_MS = tuple(tuple(map(float, line.split())) for line in _TABLE_MS.split("\n") if line)


class AWS16(DelayTable):
    """Sixteen Amazon regions, each with equally many of the nodes; trackers in eu-west-1."""

    def __init__(self, nodes: int) -> None:
        table_ms = [
            [INSIDE_MS if a == b else delay_ms for b, delay_ms in enumerate(row)]
            for a, row in enumerate(TABLE_MS)
        ]
        rows = [place % len(REGIONS) for place in range(nodes)]
        super().__init__(table_ms, rows, beyond=REGIONS.index(TRACKER_REGION))

    def region(self, place: int) -> int:
        """Return the region of a place; the places after the nodes' are the trackers'."""
        return self.row(place)


TRACKER_PLACES = 16  # where places are drawn, theirs have to be drawn beforehand

UNDERLAYS: dict[str, Callable[[int, random.Random], Underlay]] = {
    "aws16": lambda nodes, rng: AWS16(nodes),
    "cities": lambda nodes, rng: Cities(nodes + TRACKER_PLACES, rng),
    "constant": lambda nodes, rng: Constant(delay_ms=50),
    "plane": lambda nodes, rng: Plane(nodes + TRACKER_PLACES, base_ms=5, across_ms=120, rng=rng),
    "square": lambda nodes, rng: Square(nodes + TRACKER_PLACES, rng),
}
FILES = ".csv"  # what ends so is a file with a table of delays

# How long a node is busy with what it passes on, unless an experiment is told otherwise. The
# papers' tables have delays between processes, in which that is contained.
PROCESSING_MS = {"cities": 0.3}


def check_underlay(name: str) -> None:
    """Raise ValueError if there is no such underlay, or if its file is not as it should be."""
    if name.endswith(FILES):
        read_table(Path(name))
    elif name not in UNDERLAYS:
        raise ValueError(f"--underlay must be one of: {', '.join(UNDERLAYS)}, or a {FILES} file")


def make_underlay(name: str, nodes: int, rng: random.Random) -> Underlay:
    """Return the underlay of a name, or of a file, with places for nodes and trackers."""
    if name.endswith(FILES):
        return from_file(Path(name), nodes)
    return UNDERLAYS[name](nodes, rng)


def mean_delay_s(underlay: Underlay, nodes: int) -> float:
    """Return the mean delay from one node straight to another, over all ordered pairs."""
    if isinstance(underlay, DelayTable):
        return underlay.mean_delay_s(nodes)
    pairs = ((a, b) for a in range(nodes) for b in range(nodes) if a != b)
    return math.fsum(underlay.delay_s(a, b) for a, b in pairs) / (nodes * (nodes - 1))
