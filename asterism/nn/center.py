"""Centring: a running mean of the teacher's logits, subtracted from them so that no prototype dominates."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from asterism.ops.collectives import all_reduce_sum
from asterism.ops.precision import at_least_float32


class Center(nn.Module):
    """c ← m c + (1 − m) · mean of all teacher logits of an optimiser step, over micro-batches and processes.

    `accumulate` after each micro-batch's loss, `update` once per optimiser step: the losses of a step all use the
    centre from before it.
    """

    value: Float[Tensor, " k"]

    def __init__(self, dim: int, momentum: float = 0.9) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("value", torch.zeros(dim))
        # Sum of logits, then their number. Not a buffer: it is empty between steps, when checkpoints are written, and
        # data-parallel wrappers would overwrite it with the first process's.
        self._pending: Tensor | None = None

    @torch.no_grad()
    def accumulate(self, logits: Float[Tensor, "*rows k"]) -> None:
        """Add raw logits."""
        rows = at_least_float32(logits.detach()).reshape(-1, logits.shape[-1])
        self._add(rows.sum(dim=0), rows.new_full((1,), len(rows)))

    @torch.no_grad()
    def accumulate_projections(
        self, projections: Float[Tensor, "v m p"], layer: nn.Module, valid: Bool[Tensor, " m"]
    ) -> None:
        """Add the logits that a linear layer computes from the valid ones of these projections (possibly none).

        Their mean is the layer's output for the mean projection: one row instead of all.
        """
        rows = at_least_float32(projections.detach()) * valid[:, None]
        count = len(rows) * valid.sum().to(rows.dtype)
        mean = rows.flatten(0, 1).sum(dim=0) / count.clamp_min(1)
        self._add(count * at_least_float32(layer(mean)), count[None])

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the mean of the logits all processes added since the last update; without any, stay."""
        assert self._pending is not None, "nothing was accumulated since the last update"
        total = all_reduce_sum(self._pending)
        count = total[-1]
        self.value.lerp_(total[:-1] / count.clamp_min(1), (1 - self.momentum) * (count > 0).to(total.dtype))
        self._pending = None

    def _add(self, total: Float[Tensor, " k"], count: Float[Tensor, " 1"]) -> None:
        """Add the sum of some rows, and their number."""
        added = torch.cat([total, count])
        self._pending = added if self._pending is None else self._pending + added
