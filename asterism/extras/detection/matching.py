"""One detection for each true object: the assignment of least cost, by the Hungarian algorithm."""

from __future__ import annotations

import importlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.errors import MissingExtra


def least_cost_pairs(cost: Float[Tensor, "detections objects"]) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """Rows and columns of the pairs with the least total cost, each row and column at most once; k = min of both."""
    try:
        optimize = importlib.import_module("scipy.optimize")
    except ModuleNotFoundError:
        raise MissingExtra("scipy", "detect") from None
    finite = torch.nan_to_num(cost.detach().double().cpu(), nan=1e9, posinf=1e9, neginf=-1e9)
    rows, columns = optimize.linear_sum_assignment(finite.numpy())
    return torch.as_tensor(rows, device=cost.device), torch.as_tensor(columns, device=cost.device)
