"""A teacher: an average of its student's past, which learns nothing by gradient."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from asterism.ops.sharding import local

M = TypeVar("M", bound=nn.Module)


class Teacher(nn.Module, Generic[M]):
    """An exponential moving average of a module's parameters: starts as its copy, follows by `update`."""

    def __init__(self, student: M) -> None:
        super().__init__()
        self.network = copy.deepcopy(student)
        self.network.requires_grad_(False)
        self.network.eval()

    def train(self, mode: bool = True) -> Teacher[M]:
        """Stays in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.network(*arguments, **options)

    @torch.no_grad()
    def update(self, student: M, momentum: float) -> None:
        """θ_t ← momentum · θ_t + (1 − momentum) · θ_s, for each parameter of the teacher and its namesake.

        Buffers are copied: they are fixed tables, or running statistics that average already.
        """
        students = dict(student.named_parameters())
        own = [local(p) for p in self.network.parameters()]
        new = [local(students[name].detach()) for name, _ in self.network.named_parameters()]
        torch._foreach_lerp_(own, new, 1 - momentum)
        for mine, theirs in zip(self.network.buffers(), student.buffers(), strict=True):
            mine.copy_(theirs)
