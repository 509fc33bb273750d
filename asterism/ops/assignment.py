"""Assignments: balanced prototype targets (Sinkhorn and Knopp) and matchings between two sets of tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.errors import MissingExtra
from asterism.ops import collectives

_FLOOR = 1e-8  # keeps an empty row or column from dividing by zero
_FEW = 1 << 17  # logits in all processes up to which one gather is faster than many sums (two processes on a CPU)
_CEILING = 50.0  # largest exponent: e^50 times any batch fits float32, and so does e^-50 of it


@torch.no_grad()
def sinkhorn_knopp(logits: Float[Tensor, "m k"], temperature: float, iterations: int) -> Float[Tensor, "m k"]:
    """Targets in which every prototype gets about the same share of the tokens of all processes.

    Every process has the same number of tokens.
    Each row ends with sum 1, or 0 when its token is so far below every prototype's best token that it underflows.

    >>> logits = torch.tensor([[2.0, 1.0], [3.0, 1.0]])  # both tokens prefer the first prototype
    >>> sinkhorn_knopp(logits, temperature=0.1, iterations=3).round().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    scaled = logits.float() / temperature
    if logits.numel() * collectives.world_size() > _FEW:
        return _balanced_(scaled, iterations, collectives.all_reduce_max, collectives.all_reduce_sum)
    first = collectives.rank() * len(logits)
    whole = collectives.all_gather_rows(scaled)
    return _balanced_(whole, iterations, _same, _same)[first : first + len(logits)]


def _balanced_(
    scaled: Float[Tensor, "m k"],
    iterations: int,
    largest: Callable[[Tensor], Tensor],
    total: Callable[[Tensor], Tensor],
) -> Float[Tensor, "m k"]:
    """The iterations, in place. `largest` and `total` reduce over the processes that hold the rows."""
    scaled -= largest(scaled.amax(dim=0))
    plan = scaled.add_(_CEILING).exp_()
    for _ in range(iterations):
        plan /= total(plan.sum(dim=0)) + _FLOOR
        plan /= plan.sum(dim=1, keepdim=True) + _FLOOR
    return plan


def _same(values: Tensor) -> Tensor:
    return values


def distances(source: Float[Tensor, "*b s d"], target: Float[Tensor, "*#b t d"]) -> Float[Tensor, "*b s t"]:
    """Euclidean distance of every source token to every target token, without the rounding of the squared form."""
    return torch.cdist(source.float(), target.float(), compute_mode="donot_use_mm_for_euclid_dist")


@torch.no_grad()
def transport_plan(cost: Float[Tensor, "*b s t"], epsilon: float, iterations: int) -> Float[Tensor, "*b s t"]:
    """Entropic optimal transport in the log domain, scaled so that every target receives mass 1."""
    kernel = -cost / epsilon
    v = kernel.new_zeros(*kernel.shape[:-2], 1, kernel.shape[-1])
    for _ in range(iterations):
        u = -torch.logsumexp(kernel + v, dim=-1, keepdim=True)
        v = -torch.logsumexp(kernel + u, dim=-2, keepdim=True)
    return torch.exp(kernel + u + v)


@torch.no_grad()
def match(
    source: Float[Tensor, "*b s d"], target: Float[Tensor, "*#b t d"], epsilon: float, iterations: int
) -> Int[Tensor, "*b s"]:
    """The target token that receives most of each source token's mass; not necessarily one-to-one."""
    return transport_plan(distances(source, target), epsilon, iterations).argmax(dim=-1)


@torch.no_grad()
def hungarian(cost: Float[Tensor, "*b s t"]) -> Int[Tensor, "*b s"]:
    """The exact one-to-one assignment of least total cost; solved on the CPU, one problem at a time."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingExtra("scipy", "matching") from None
    s, t = cost.shape[-2:]
    assert s <= t, f"{s} sources cannot each have their own target: there are only {t}"
    problems = cost.reshape(-1, s, t).cpu().numpy()
    columns = np.array([linear_sum_assignment(problem)[1] for problem in problems]).reshape(*cost.shape[:-1])
    return torch.from_numpy(columns).to(cost.device)
