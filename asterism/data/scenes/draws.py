"""A stream of random numbers for one scene, drawn from a key in blocks because single draws are slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

Choice = TypeVar("Choice")


class Draws:
    """Numbers that depend on `key` and on how many were drawn before, and on nothing else."""

    def __init__(self, key: int) -> None:
        self._stream = _stream(np.random.default_rng(key & (1 << 64) - 1))

    def unit(self) -> float:
        """In [0, 1)."""
        return next(self._stream)

    def between(self, low: float, high: float) -> float:
        """In [low, high)."""
        return low + (high - low) * next(self._stream)

    def whole(self, low: int, high: int) -> int:
        """One of low, …, high."""
        return low + int((high - low + 1) * next(self._stream))

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(len(choices) * next(self._stream))]

    def chance(self, probability: float) -> bool:
        return next(self._stream) < probability


def _stream(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield from generator.random(128).tolist()
