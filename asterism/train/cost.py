"""The cost of a training step in FLOPs, memory and disk, measured on a few images before a run starts."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from asterism.methods.base import Method
from asterism.ops import streams
from asterism.ops.random import fold_each
from asterism.train.optim import OptimConfig, build_optimizer, moment_bytes
from asterism.types import Batch, CropGeometry, Progress, View, ViewSpec

_FEW, _MORE = 2, 4  # images of the two trial batches that determine arithmetic and memory
_TIMINGS = 7  # of a batch, of which the shortest counts
_PATIENCE = 2.0  # seconds of timing after which no other one starts
_LONG_ENOUGH = 0.25  # seconds of a step that need not be timed with more images


@dataclass(frozen=True)
class StepCost:
    """The cost of one optimiser step on one device."""

    flops: float  # forward and backward
    seconds: float  # extrapolated from a smaller batch if a step is long
    memory: int  # bytes: weights (also frozen ones), gradients, moments, tensors saved for the backward pass
    checkpoint: int  # bytes on disk


def step_cost(
    method: Method,
    optim: OptimConfig,
    batch_size: int,
    accumulate: int = 1,
    *,
    precision: str = "32",
    gradients_stay: bool = False,
) -> StepCost:
    """The cost of `accumulate` micro-batches, together `batch_size` images, on the device that holds the method.

    Arithmetic and memory are linear in the number of images plus a constant (prototypes, memory banks), so two small
    batches of noise determine them. The method is left unchanged.

    At the start of the backward pass, what autograd keeps comes on top of weights, buffers and moments. It is freed
    from the last layer to the first, while gradients fill up in the same order, so the larger of both counts.
    gradients_stay: they outlive a backward pass, as with several micro-batches or DDP's buckets, so their sum counts.
    """
    images = batch_size // accumulate
    with _unchanged(method), autocast_to(precision, _device(method).type):
        few, more = (_count(method, count) for count in (_FEW, _MORE))
        seconds = accumulate * _seconds(method, images) + _optimizer_seconds(method, optim)
    flops, kept = (_extrapolated(a, b, images) for a, b in zip(few, more, strict=True))
    trained = _bytes(parameter for parameter in method.parameters() if parameter.requires_grad)
    state = _bytes(method.state_dict().values())
    moments = moment_bytes(method, optim)
    frozen = sum(encoder.bytes for encoder in method.frozen_encoders.values())
    return StepCost(
        flops=accumulate * flops,
        seconds=seconds,
        memory=int(state + moments + frozen + (trained + kept if gradients_stay else max(trained, kept))),
        checkpoint=state + moments,
    )


def autocast_to(precision: str, device: str) -> contextlib.AbstractContextManager[object]:
    """Autocast in the precision of a recipe; nothing in full precision."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return contextlib.nullcontext() if half is None else torch.autocast(device, half)


def _extrapolated(few: float, more: float, images: int) -> float:
    slope = max(0.0, more - few) / (_MORE - _FEW)
    return max(more * min(1.0, images / _MORE), more + slope * (images - _MORE))


def _count(method: Method, images: int) -> tuple[float, float]:
    """FLOPs, and bytes saved for the backward pass."""
    kept = _KeptBytes(method)
    with FlopCounterMode(display=False) as counter, kept:
        _step(method, noise(method.views, images, _device(method)))
    return float(counter.get_total_flops()), float(kept.bytes)


def _seconds(method: Method, images: int) -> float:
    """Seconds of forward and backward pass, with as many of the images as can be timed in reasonable time."""
    tried, per_image = min(_MORE, images), math.inf
    with contextlib.suppress(torch.OutOfMemoryError):  # a plan is also made to see whether a batch fits
        while True:
            seconds = _shortest(partial(_step, method, noise(method.views, tried, _device(method))))
            per_image = seconds / tried
            if tried == images or seconds > _LONG_ENOUGH:
                break
            tried = min(2 * tried, images)
    return images * per_image


def _optimizer_seconds(method: Method, optim: OptimConfig) -> float:
    """Seconds of an update, which changes nothing at a learning rate of 0; 0 if moments and gradients do not fit."""
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    optimizer = build_optimizer(method, optim)
    try:
        for parameter in trained:
            parameter.grad = torch.ones_like(parameter)
        return _shortest(lambda: _finished(optimizer.step, _device(method)))
    except torch.OutOfMemoryError:
        return 0.0
    finally:
        for parameter in trained:
            parameter.grad = None


@contextlib.contextmanager
def _unchanged(method: Method) -> Iterator[None]:
    before = {name: value.clone() for name, value in method.state_dict().items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in method.state_dict().items():
                value.copy_(before[name])


def _step(method: Method, batch: Batch) -> None:
    """A step without an optimiser; the method also forgets what it collected for its update."""
    progress = Progress(step=0, steps=1000, steps_per_epoch=10)

    def work() -> None:
        torch.autograd.backward(method.loss(batch, progress).total)
        method.zero_grad(set_to_none=True)
        method.after_update(progress)

    _finished(work, batch.index.device)


def _finished(work: Callable[[], object], device: torch.device) -> None:
    """Do the work, and wait for a GPU."""
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device(method: Method) -> torch.device:
    return next(method.parameters()).device


def _shortest(work: Callable[[], None]) -> float:
    """Seconds of the fastest of several calls: other work on the machine only slows them down."""
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
    index = torch.arange(images)
    return Batch(tuple(views), index.to(device), fold_each(index, streams.Hash.BITS))


def _bytes(tensors: object) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # type: ignore[attr-defined]
