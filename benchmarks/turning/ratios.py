"""The median of paired ratios, with an interval that assumes no distribution.

Of n sorted ratios, the k-th smallest and the k-th largest enclose the median of the distribution
with probability 1 - 2 P(B < k), where B is binomial with n trials and probability 1/2: each ratio
lies on either side of that median with equal chance, whatever the distribution is (the interval
of the sign test). The largest k whose probability is at least 95% is taken. 11 ratios give k = 2
and 98.8%; with fewer than 6 no such interval exists.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
MIN_PAIRS = 11


@dataclass(frozen=True)
class Interval:
    """The median of some ratios, and the interval that holds the true one."""

    low: float
    median: float
    high: float
    coverage: float


def rank(count: int) -> int:
    """Return k: the k-th smallest and the k-th largest of `count` values are the limits."""
    best, outside = 0, 0.0
    for k in range(1, count // 2 + 1):
        outside += math.comb(count, k - 1) / 2**count
        if 1 - 2 * outside < CONFIDENCE:
            break
        best = k
    if not best:
        raise ValueError(f"{count} values have no interval of {CONFIDENCE:.0%}: take 6 or more")
    return best


def interval(ratios: Sequence[float]) -> Interval:
    """Return the median of the ratios and its interval."""
    values, k = sorted(ratios), rank(len(ratios))
    outside = sum(math.comb(len(values), below) for below in range(k)) / 2 ** len(values)
    return Interval(values[k - 1], statistics.median(values), values[-k], 1 - 2 * outside)


def slowdown(old: float, new: float, more_is_better: bool) -> float:
    """Return how many times slower or larger the new figure is; above 1 is worse."""
    worse, better = (old, new) if more_is_better else (new, old)
    if worse == better:
        return 1.0
    return worse / better if better else math.inf
