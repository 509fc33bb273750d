"""Peak memory of a training step, computed without running it: on fake tensors, which have shapes but no data.

Weights (also frozen ones), buffers and the optimiser's moments are always there. At the start of the backward pass,
what autograd keeps comes on top. It is freed from the last layer to the first, while gradients fill up in the same
order, so the larger of both counts; their sum where gradients outlive a backward pass. With checkpointing, autograd
keeps the inputs of the blocks instead of what is inside, plus the inside of the one block that is being recomputed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from asterism.methods.base import Method
from asterism.nn.backbone import Backbone
from asterism.train.building import build_method
from asterism.train.cost import noise
from asterism.train.optim import moment_bytes
from asterism.train.recipe import Recipe
from asterism.types import Progress


@dataclass(frozen=True)
class Memory:
    """Bytes per process."""

    fixed: int  # weights, buffers and moments; gradients too, if they outlive a backward pass
    gradients: int  # those that do not
    kept: int  # for the backward pass
    kept_checkpointed: int  # the same with checkpointing by block

    @property
    def peak(self) -> int:
        return self.fixed + max(self.gradients, self.kept)

    @property
    def peak_checkpointed(self) -> int:
        return self.fixed + max(self.gradients, self.kept_checkpointed)


def estimate_memory(recipe: Recipe, images: int, gradients_stay: bool = False) -> Memory | None:
    """The memory of a micro-batch of so many images; None for methods whose shapes depend on the data.

    Half precision is that of the recipe: autocast keeps copies of weights and of most activations in two bytes.
    gradients_stay: whether gradients outlive a backward pass, as with several micro-batches or DDP's buckets.
    """
    method = build_method(recipe).train()
    try:
        kept, blocks, inputs = _kept(method, recipe.trainer.precision, images)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, IndexError):
        # Something asked for a value, and fake tensors have none.
        return None
    depth = max(1, method.backbone.depth)
    trained = _bytes(parameter for parameter in method.parameters() if parameter.requires_grad)
    state = _bytes(method.parameters()) + _bytes(method.buffers())
    fixed = (
        state + moment_bytes(method, recipe.optim) + sum(encoder.bytes for encoder in method.frozen_encoders.values())
    )
    return Memory(
        fixed=fixed + trained if gradients_stay else fixed,
        gradients=0 if gradients_stay else trained,
        kept=kept,
        kept_checkpointed=kept - blocks + inputs + blocks // depth,
    )


def _kept(method: Method, precision: str, images: int) -> tuple[int, int, int]:
    """Bytes kept for the backward pass, the part of them inside blocks of the student, and the blocks' inputs."""
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state = [mode.from_tensor(tensor) for tensor in (*method.parameters(), *method.buffers())]
    count = _Count(state)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_watched_blocks(method, count))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(count.add, lambda tensor: tensor))
        if half is not None:
            stack.enter_context(torch.autocast("cpu", half))
        stack.enter_context(mode)
        batch = noise(method.views, images, torch.device("cpu"))
        losses = method.loss(batch, Progress(step=0, steps=1000, steps_per_epoch=10))
        assert losses.total.requires_grad
    return count.bytes, count.inside, count.inputs


class _Count:
    """Bytes by place; each storage counts once, and those of the method's state not at all."""

    def __init__(self, state: Iterable[Tensor]) -> None:
        self.bytes = self.inside = self.inputs = 0
        self.depth = 0  # of blocks that are running
        # Storages stay alive, so that no other gets the address of one that is gone.
        self._known = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in state}

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known and not isinstance(tensor, nn.Parameter):
            self._known[storage._cdata] = storage
            self.bytes += storage.nbytes()
            self.inside += storage.nbytes() if self.depth else 0
        return tensor


@contextlib.contextmanager
def _watched_blocks(method: Method, count: _Count) -> Iterator[None]:
    def enter(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            count.depth += 1
            count.inputs += arguments[0].numel() * arguments[0].element_size()

    def leave(*_: Any) -> None:
        if torch.is_grad_enabled():
            count.depth -= 1

    hooks = []
    for backbone in (module for module in method.modules() if isinstance(module, Backbone)):
        for block in getattr(backbone.network, "blocks", ()):
            hooks += [block.register_forward_pre_hook(enter), block.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
