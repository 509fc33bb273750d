"""A stream of random numbers for one scene, drawn from a key in blocks because single draws are slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np

Choice = TypeVar("Choice")
_BLOCK = 192  # enough for most scenes


class Draws:
    """Numbers that depend on `key` and on how many were drawn before, and on nothing else."""

    unit: Callable[[], float]  # the next number in [0, 1)

    def __init__(self, key: int) -> None:
        generator = np.random.default_rng(key & (1 << 64) - 1)
        blocks = iter(lambda: generator.random(_BLOCK).tolist(), None)
        self.unit = chain.from_iterable(blocks).__next__

    def between(self, low: float, high: float) -> float:
        """In [low, high)."""
        return low + (high - low) * self.unit()

    def each(self, *ranges: tuple[float, float]) -> list[float]:
        return [self.between(low, high) for low, high in ranges]

    def whole(self, low: int, high: int) -> int:
        """One of low, …, high."""
        return low + int((high - low + 1) * self.unit())

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(len(choices) * self.unit())]

    def chance(self, probability: float) -> bool:
        return self.unit() < probability
