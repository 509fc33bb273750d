"""Training steps as `asterism.train.loop` takes them, with the quantities that the files record."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asterism.methods.base import Method
from asterism.train.optim import OptimConfig, build_optimizer, clip_gradients, set_schedules
from asterism.types import Batch, CropGeometry, Losses, Progress, View


@dataclass(frozen=True)
class Step:
    """A finished step; the method has the state after it."""

    progress: Progress
    losses: Losses  # the losses that were differentiated
    lr: float
    weight_decay: float  # of the decayed group
    gradients: Mapping[str, Tensor]  # before clipping and freezing, by our names

    @property
    def gradient_norms(self) -> dict[str, float]:
        return {name: float(gradient.norm()) for name, gradient in self.gradients.items()}

    @property
    def gradient_norm(self) -> float:
        return float(np.linalg.norm(list(self.gradient_norms.values())))


def train(
    method: Method,
    optim: OptimConfig,
    count: int,
    progress: Callable[[int], Progress],
    loss: Callable[[Progress], Losses],
    batch_size: int,
) -> Iterator[Step]:
    """Take `count` steps; `loss` passes the stored batch and draws of a step to the method."""
    optimizer = build_optimizer(method, optim)
    for number in range(count):
        now = progress(number)
        losses = loss(now)
        losses.total.backward()
        gradients = {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}
        lr = set_schedules(optimizer, optim, now, batch_size)
        for parameter in method.frozen(now):
            parameter.grad = None
        clip_gradients(method.parameters(), optim)
        optimizer.step()
        optimizer.zero_grad()
        method.after_update(now)
        yield Step(now, losses, lr, optimizer.param_groups[0]["weight_decay"], gradients)


def batch_of(views: list[Tensor]) -> Batch:
    """Views of whole images; keys increase with the index, so memories store rows in the batch's order."""
    images = len(views[0])
    keys = torch.arange(images)
    return Batch(tuple(View(pixels, _whole(pixels)) for pixels in views), keys, keys)


def _whole(pixels: Tensor) -> CropGeometry:
    zero = torch.zeros(len(pixels))
    height, width = (torch.full((len(pixels),), float(side)) for side in pixels.shape[-2:])
    return CropGeometry(zero, zero, height, width, height, width, zero.bool())
