"""The mean over seeds and its confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

EXPLANATION = (
    "Mean over seeds. In brackets: for three or more seeds, the 95 % confidence interval of the mean (Student's t); "
    "for two, half their difference."
)

# 97.5 % quantiles of Student's t for 2, 3, … degrees of freedom
_T = (
    *(4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120),
    *(2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Interval:
    """`half` is None for a single value."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.half is None else f"{self.mean:.2f} (±{self.half:.2f})"


def interval(values: Sequence[float]) -> Interval | None:
    if not values:
        return None
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Interval(mean, None, 1)
    if count == 2:
        return Interval(mean, abs(values[0] - values[1]) / 2, 2)
    return Interval(mean, t_quantile(count - 1) * statistics.stdev(values) / math.sqrt(count), count)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile; beyond the table by the Cornish-Fisher expansion, exact there to four digits."""
    if freedom - 2 < len(_T):
        return _T[freedom - 2]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
