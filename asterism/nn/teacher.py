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
        own, students = dict(self.network.named_parameters()), dict(student.named_parameters())
        new = [local(students[name].detach()) for name in own]
        torch._foreach_lerp_([local(parameter) for parameter in own.values()], new, 1 - momentum)
        for mine, theirs in zip(self.network.buffers(), student.buffers(), strict=True):
            mine.copy_(theirs)
