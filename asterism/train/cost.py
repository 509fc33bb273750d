"""The cost of a training step in FLOPs, memory and disk, measured on a few images before a run starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asterism.methods.base import Method
from asterism.ops.random import fold_each
from asterism.types import Batch, CropGeometry, Progress, View, ViewSpec

_FEW, _MORE = 2, 4  # images of the two trial batches
_TIMINGS = 7  # of each, of which the shortest counts
_PATIENCE = 2.0  # seconds of timing after which no other one starts


@dataclass(frozen=True)
class StepCost:
    """The cost of one optimiser step on one device."""

    flops: float  # forward and backward
    seconds: float  # without the optimiser, extrapolated from small batches
    memory: int  # bytes: weights (also frozen ones), gradients, moments of AdamW, tensors saved for the backward pass
    checkpoint: int  # bytes on disk


def step_cost(method: Method, batch_size: int, accumulate: int = 1, *, gradients_stay: bool = False) -> StepCost:
    """The cost of `accumulate` micro-batches, together `batch_size` images, on the device that holds the method.

    Costs are linear in the number of images plus a constant (prototypes, memory banks), so two small batches of noise
    determine them. The method is left unchanged. gradients_stay: as of `estimate_memory`.
    """
    images = batch_size // accumulate
    few, more = (_trial(method, count) for count in (_FEW, _MORE))
    flops, seconds, kept = (_extrapolated(a, b, images) for a, b in zip(few, more, strict=True))
    trained = _bytes(parameter for parameter in method.parameters() if parameter.requires_grad)
    state = _bytes(method.state_dict().values())
    moments = 2 * trained
    frozen = sum(encoder.bytes for encoder in method.frozen_encoders.values())
    return StepCost(
        flops=accumulate * flops,
        seconds=accumulate * seconds,
        memory=int(state + moments + frozen + (trained + kept if gradients_stay else max(trained, kept))),
        checkpoint=state + moments,
    )


def _extrapolated(few: float, more: float, images: int) -> float:
    slope = max(0.0, more - few) / (_MORE - _FEW)
    return max(more * min(1.0, images / _MORE), more + slope * (images - _MORE))


def _trial(method: Method, images: int) -> tuple[float, float, float]:
    """FLOPs, seconds, and bytes saved for the backward pass."""
    device = next(method.parameters()).device
    batch = noise(method.views, images, device)
    progress = Progress(step=0, steps=1000, steps_per_epoch=10)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    kept = _KeptBytes(method)
    with FlopCounterMode(display=False) as counter, kept:
        _step(method, batch, progress)
    seconds = _shortest(lambda: _step(method, batch, progress))
    with torch.no_grad():
        for name, value in method.state_dict().items():
            value.copy_(before[name])
    return float(counter.get_total_flops()), seconds, float(kept.bytes)


def _step(method: Method, batch: Batch, progress: Progress) -> None:
    """A step without an optimiser; the method also forgets what it collected for its update."""
    torch.autograd.backward(method.loss(batch, progress).total)
    method.zero_grad(set_to_none=True)
    method.after_update(progress)
    if batch.index.device.type == "cuda":
        torch.cuda.synchronize(batch.index.device)


def _shortest(work: Callable[[], None]) -> float:
    """Seconds of the fastest of several calls: other work on the machine only slows them down.

    The difference of two trials is multiplied many times, so a single interruption would spoil the estimate.
    """
    taken: list[float] = []
    while len(taken) < _TIMINGS and sum(taken) < _PATIENCE:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


class _KeptBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that autograd saves for the backward pass: each storage once, without the weights."""

    def __init__(self, module: nn.Module) -> None:
        self.bytes = 0
        self._seen = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        super().__init__(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def noise(specs: Sequence[ViewSpec], images: int, device: torch.device) -> Batch:
    """Views of noise, of the specified sizes; every view is the whole image."""
    views = []
    for number, spec in enumerate(specs):
        generator = torch.Generator().manual_seed(number)
        zero, side = torch.zeros(images), torch.full((images,), float(spec.size))
        geometry = CropGeometry(zero, zero, side, side, side, side, torch.zeros(images, dtype=torch.bool))
        placed = CropGeometry(**{name: value.to(device) for name, value in vars(geometry).items()})
        pixels = torch.randn(images, 3, spec.size, spec.size, generator=generator).to(device)
        segments = torch.zeros(images, spec.size, spec.size, dtype=torch.int64, device=device)
        views.append(View(pixels, placed, segments if spec.segments else None))
    index = torch.arange(images, device=device)
    return Batch(tuple(views), index, fold_each(index, 0))


def _bytes(tensors: object) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # type: ignore[attr-defined]
