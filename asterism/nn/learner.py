"""The contract between the training loop and what it trains: a method of pretraining, or a task with its head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from torch import nn

from asterism.types import Losses, Progress

B = TypeVar("B")  # a micro-batch on the device


class Learner(nn.Module, ABC, Generic[B]):
    """Networks and their other state, as parameters and buffers, so that the `state_dict` is complete.

    Within one optimiser step the loop calls `loss` once per micro-batch and `after_update` once at the end.
    """

    uniform_terms: Mapping[str, float] = MappingProxyType({})  # ln K of each term that equals ln K after a collapse

    @abstractmethod
    def loss(self, batch: B, progress: Progress) -> Losses:
        """Loss terms of a micro-batch, each a mean over the images of this process."""

    def frozen(self, progress: Progress) -> Iterable[nn.Parameter]:
        """Parameters that stay fixed in this step."""
        return ()

    def after_update(self, progress: Progress) -> None:
        """Update averages, centres and memories, once per optimiser step. `progress` is that of the finished step."""


def trained_parameters(module: nn.Module) -> int:
    """The number of parameters that training changes."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
