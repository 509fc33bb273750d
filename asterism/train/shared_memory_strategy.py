"""Data-parallel training by processes that share memory: after its backward pass, each averages its gradients with the
others.

torch's DDP averages during the backward pass, from copies of the gradients and with one call per parameter. On
the CPU of one machine there is nothing to gain from that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.strategy import _BackwardSyncControl
from torch import Tensor, nn

from asterism.ops import collectives


class SharedMemoryStrategy(DDPStrategy):
    """Fabric's strategy for processes of `asterism.train.processes`. The module itself is trained, not a wrapper."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._parameters: Sequence[nn.Parameter] = ()
        self._averaging = _Averaging()
        self._backward_sync_control = self._averaging

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        collectives.copy_from_first_process([*module.parameters(), *module.buffers()])
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return module

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **options: Any) -> None:
        super().backward(tensor, module, *args, **options)
        if self._averaging.is_due:
            collectives.average_in_shared_memory([p.grad for p in self._parameters if p.grad is not None])


class _Averaging(_BackwardSyncControl):
    """Whether a backward pass averages. All but the last micro-batch of a step only add to the gradients."""

    def __init__(self) -> None:
        self.is_due = True

    @contextlib.contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        self.is_due = not enabled
        try:
            yield
        finally:
            self.is_due = True
