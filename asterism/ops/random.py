"""Counter-based random draws from 64-bit keys.

A key is folded from integers such as (seed, epoch, sample) or (seed, step). The numbers drawn from it depend on nothing
else, so they are the same on every device, for every batch composition and number of processes, and no generator
state has to be saved. The mixing is splitmix64's finaliser (Steele et al., 2014).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB
_WORD = (1 << 64) - 1


def fold(key: int, *data: int) -> int:
    """A new key (a signed 64-bit integer) from a key and the integers that distinguish this use from others."""
    for value in data:
        key = _mix_int((key + _GOLDEN * (value + 1)) & _WORD)
    return _signed(key & _WORD)


def fold_each(keys: Int[Tensor, " b"], *data: int) -> Int[Tensor, " b"]:
    """`fold` of every key of a tensor."""
    for value in data:
        keys = _mix(keys + _signed(_GOLDEN * (value + 1) & _WORD))
    return keys


def fold_series(keys: Int[Tensor, " b"], count: int, first: int = 0) -> Int[Tensor, "b {count}"]:
    """`fold` of every key with `first` and the next integers, `count` in all."""
    steps = torch.arange(first + 1, first + count + 1, device=keys.device, dtype=torch.int64) * _signed(_GOLDEN)
    return _mix(keys[:, None] + steps)


def uniform(keys: Int[Tensor, " b"], count: int) -> Float[Tensor, "b {count}"]:
    """`count` numbers in [0, 1) for every key."""
    return (fold_series(keys, count) >> 40 & 0xFFFFFF).to(torch.float32) * 2.0**-24


def generator(key: int) -> torch.Generator:
    """A CPU generator for draws that torch makes itself, such as permutations."""
    return torch.Generator().manual_seed(key & (1 << 63) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX2)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic and keeps the sign."""
    return x >> bits & (1 << 64 - bits) - 1


def _mix_int(x: int) -> int:
    x = (x ^ x >> 30) * _MIX1 & _WORD
    x = (x ^ x >> 27) * _MIX2 & _WORD
    return x ^ x >> 31


def _signed(x: int) -> int:
    x &= _WORD
    return x - (1 << 64) if x >> 63 else x
