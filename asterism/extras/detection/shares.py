"""Means over the regions of all processes, from means over the regions of one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.ops import collectives


def weighted_by_share(
    losses: Mapping[str, Float[Tensor, ""]], counts: Mapping[str, float]
) -> dict[str, Float[Tensor, ""]]:
    """Losses whose average over processes is the mean over everything that was counted.

    losses: each a mean over the things that this process has; counts: how many these are. A process with more of them
    gets more weight; with one process the losses are unchanged. A collective: every process calls it, with the same
    names.
    """
    world = collectives.world_size()
    if world == 1:
        return dict(losses)
    names = sorted(losses)
    device = losses[names[0]].device
    own = torch.tensor([float(counts[name]) for name in names], dtype=torch.float64)
    total = collectives.all_reduce_sum(own.float().to(device)).double().cpu()
    weights = (own * world / total.clamp_min(1)).tolist()
    return {name: losses[name] * weight for name, weight in zip(names, weights, strict=True)}
