"""Stochastic depth (Huang et al., 2016) drawn from per-sample keys.

Whether a branch of a block is dropped for an image depends only on the image's key, the block and the branch, not on
the rest of the batch, the device or the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asterism.ops import streams
from asterism.ops.host import sent
from asterism.ops.random import fold_each, uniform


class KeyedDropPath(nn.Module):
    """Replaces timm's DropPath: scales a branch by each sample's factor while factors are set."""

    factor: Float[Tensor, " b"] | None = None

    def forward(self, branch: Float[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
        if self.factor is None:
            return branch
        return branch * self.factor.to(branch.dtype).view(-1, *[1] * (branch.ndim - 1))


def install_drop_paths(blocks: Iterable[nn.Module]) -> None:
    """Give both branches of every block a `KeyedDropPath`; parameters and their names are unchanged."""
    for block in blocks:
        block.drop_path1, block.drop_path2 = KeyedDropPath(), KeyedDropPath()


def branch_factors(
    keys: Int[Tensor, " b"] | None, depth: int, last_rate: float, device: torch.device
) -> Sequence[Float[Tensor, "2 b"] | None]:
    """For every block: 0 where a branch is dropped, 1/(1 - rate) where it is kept; the rate grows linearly from 0.

    None if nothing can be dropped: without keys, or at rate 0.
    """
    if keys is None or last_rate == 0:
        return [None] * depth
    rates = torch.linspace(0, last_rate, depth)[:, None, None]
    draws = uniform(fold_each(keys, streams.View.DROPPED_PATHS), 2 * depth).T.view(depth, 2, -1)
    return sent((draws >= rates) / (1 - rates), device).unbind()


def run_block(
    block: nn.Module,
    x: Float[Tensor, "b ..."],
    factors: Float[Tensor, "2 b"] | None,
    checkpointing: bool,
    context: tuple[Tensor | None, ...] = (),
) -> Float[Tensor, "b ..."]:
    """`block(x, *context)` with its two branches scaled by these factors."""
    return run_part(_run, checkpointing, block, x, factors, context)


def run_part(part: Callable[..., Tensor], checkpointing: bool, *arguments: Any) -> Tensor:
    """`part(*arguments)`, recomputed in the backward pass if `checkpointing`."""
    if checkpointing and torch.is_grad_enabled():
        # The factors are arguments, so the recomputation uses those of its own forward pass; nothing is redrawn.
        return checkpoint(part, *arguments, use_reentrant=False, preserve_rng_state=False)
    return part(*arguments)


def _run(block: Any, x: Tensor, factors: Tensor | None, context: tuple[Tensor | None, ...]) -> Tensor:
    if factors is None:
        return block(x, *context)
    paths: Sequence[KeyedDropPath] = (block.drop_path1, block.drop_path2)
    for path, factor in zip(paths, factors, strict=True):
        path.factor = factor
    try:
        return block(x, *context)
    finally:  # also when the recomputation stops early
        for path in paths:
            path.factor = None
