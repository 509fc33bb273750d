"""Promotion for arithmetic that half precision would make inaccurate."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Half precision becomes float32; float32 and float64 stay as they are.

    >>> at_least_float32(torch.ones(2, dtype=torch.bfloat16)).dtype, at_least_float32(torch.ones(2).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))
