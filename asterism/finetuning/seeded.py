"""Global generators set from a key, for library code that draws from them; they are restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Inside, draws of `random`, `numpy.random` and torch's CPU generator are a function of the key."""
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & (1 << 63) - 1)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])
