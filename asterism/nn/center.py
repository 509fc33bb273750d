"""A running mean of the teacher's logits, subtracted from them so that no prototype takes all."""

from __future__ import annotations

import torch
from jaxtyping import Float
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
        # data-parallel wrappers would copy the first process's over the others'.
        self._pending: Tensor | None = None

    @torch.no_grad()
    def accumulate(self, logits: Float[Tensor, "*rows k"]) -> None:
        """Take note of raw logits."""
        rows = at_least_float32(logits.detach()).reshape(-1, logits.shape[-1])
        self._note(rows.sum(dim=0), len(rows))

    @torch.no_grad()
    def accumulate_projections(self, projections: Float[Tensor, "*rows p"], layer: nn.Module) -> None:
        """Take note of the logits that a linear layer makes of these projections, maybe of none.

        Their mean is the layer's output for the mean projection: one row instead of all.
        """
        rows = at_least_float32(projections.detach()).flatten(0, -2)
        mean = rows.sum(dim=0) / max(1, len(rows))
        self._note(len(rows) * at_least_float32(layer(mean)), len(rows))

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the mean of what was noted since the last update, by every process; stay if that was nothing."""
        assert self._pending is not None, "nothing was accumulated since the last update"
        total = all_reduce_sum(self._pending)
        count = total[-1]
        self.value.lerp_(total[:-1] / count.clamp_min(1), (1 - self.momentum) * (count > 0).to(total.dtype))
        self._pending = None

    def _note(self, logits: Float[Tensor, " k"], count: int) -> None:
        """The sum of some rows, and how many they are."""
        noted = torch.cat([logits, logits.new_tensor([count])])
        self._pending = noted if self._pending is None else self._pending + noted
