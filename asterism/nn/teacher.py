"""A momentum encoder: a moving average of its student, without gradients."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from asterism.ops.sharding import local

M = TypeVar("M", bound=nn.Module)


class Teacher(nn.Module, Generic[M]):
    """An exponential moving average of a module's parameters: starts as a copy and follows with `update`."""

    def __init__(self, student: M) -> None:
        super().__init__()
        self.network = copy.deepcopy(student)
        self.network.requires_grad_(False)
        self.network.eval()
        self._followed: _Followed | None = None

    def train(self, mode: bool = True) -> Teacher[M]:
        """Stays in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.network(*arguments, **options)

    @torch.no_grad()
    def update(self, student: M, momentum: float) -> None:
        """θ_t ← momentum · θ_t + (1 − momentum) · θ_s, for each parameter and the student's of the same name.

        Buffers are copied: they are fixed tables, or running statistics that are already averages.
        """
        if self._followed is None or not self._followed.is_current(self.network, student):
            self._followed = _Followed(self.network, student)
        torch._foreach_lerp_(self._followed.own, self._followed.students, 1 - momentum)
        for mine, theirs in self._followed.buffers:
            mine.copy_(theirs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies find their student's tensors themselves."""
        return self.__dict__ | {"_followed": None}


class _Followed:
    """Tensors of a teacher and of its student in pairs: to find them takes longer than to average small ones."""

    def __init__(self, network: nn.Module, student: nn.Module) -> None:
        own, students = dict(network.named_parameters()), dict(student.named_parameters())
        self.own = [local(parameter) for parameter in own.values()]
        self.students = [local(students[name].detach()) for name in own]
        self.buffers = list(zip(network.buffers(), student.buffers(), strict=True))
        self._places = _places(network), _places(student)

    def is_current(self, network: nn.Module, student: nn.Module) -> bool:
        """Another student, another device and sharding change the first parameter as well as the others."""
        return self._places == (_places(network), _places(student))


def _places(module: nn.Module) -> tuple[int, int]:
    """The first parameter and where its values are."""
    first = next(module.parameters())
    return id(first), local(first).data_ptr()
