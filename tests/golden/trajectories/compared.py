"""One quantity of a replayed training run next to the official one."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Compared:
    """`name` starts with the group of the quantity, as in `final/head.mlp.0.weight`: tables show one row per group."""

    name: str
    ours: np.ndarray
    theirs: np.ndarray
    tolerance: float  # largest absolute error allowed; 0: equal, bit for bit

    @property
    def group(self) -> str:
        return self.name.split("/")[0]

    @property
    def error(self) -> float:
        """Largest absolute difference; infinite where shapes differ or only one of the two is finite."""
        if self.ours.shape != self.theirs.shape:
            return float("inf")
        if self.ours.size == 0:
            return 0.0
        difference = np.abs(self.ours.astype(np.float64) - self.theirs.astype(np.float64))
        return float(np.where(np.isnan(difference), np.inf, difference).max())

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        shapes = f", shape {self.ours.shape} instead of {self.theirs.shape}" * (self.ours.shape != self.theirs.shape)
        return f"{self.name}: error {self.error:.3g}, tolerance {self.tolerance:.3g}{shapes}"
