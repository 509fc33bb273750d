"""Batch norm whose statistics are those of the batch on all processes, on any device.

torch's SyncBatchNorm needs CUDA. Here two processes of half a batch compute the same as one process of the whole batch.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from asterism.ops.collectives import all_reduce_mean_with_grad, world_size


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """`nn.BatchNorm2d` over the images of all processes, each of which has the same number of values."""

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if not self.training or world_size() == 1:
            return super().forward(input)
        x = input.float()
        mean = all_reduce_mean_with_grad(x.mean(dim=(0, 2, 3)))
        centred = x - mean[:, None, None]
        variance = all_reduce_mean_with_grad(centred.square().mean(dim=(0, 2, 3)))
        self._remember(mean.detach(), variance.detach(), x.numel() // x.shape[1] * world_size())
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Float[Tensor, " c"], variance: Float[Tensor, " c"], values: int) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * values / max(1, values - 1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
