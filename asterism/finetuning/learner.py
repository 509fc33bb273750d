"""A task as the training loop trains it: with the average of its weights, and the best result so far."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.finetuning.recipe import AverageConfig
from asterism.finetuning.task import Task, TaskBatch
from asterism.nn.learner import Learner
from asterism.nn.teacher import Teacher
from asterism.ops.sharding import whole
from asterism.types import Losses, Progress


class FineTuned(Learner[TaskBatch]):
    """Checkpoints contain all of it, so a resumed run continues with the same average and the same best result."""

    best_score: Float[Tensor, ""]  # of the primary metric on held-out images; -inf before the first measurement
    best_step: Int[Tensor, ""]

    def __init__(self, task: Task, average: AverageConfig | None) -> None:
        super().__init__()
        self.task = task
        self.average = None if average is None else Teacher(task)
        self._decay = 0.0 if average is None else average.decay
        # In a list, so that it is neither a submodule nor part of the state, and is never sharded.
        self._outside = [copy.deepcopy(task).eval().requires_grad_(False)]
        self.register_buffer("best_score", torch.tensor(-torch.inf, dtype=torch.float64))
        self.register_buffer("best_step", torch.tensor(0))

    @property
    def copy(self) -> Task:
        """A task for measuring and saving, with the weights of the last call of `final`."""
        return self._outside[0]

    def loss(self, batch: TaskBatch, progress: Progress) -> Losses:
        return self.task.loss(batch, progress)

    def after_update(self, progress: Progress) -> None:
        if self.average is not None:
            self.average.update(self.task, average_momentum(progress.step, self._decay))

    @torch.no_grad()
    def final(self, device: torch.device) -> Task:
        """The task as it is used: averaged weights, if there is an average, in evaluation mode, whole on this process.

        A collective if parameters are sharded. It is always the same object, `copy`.
        """
        current = (self.task if self.average is None else self.average.network).state_dict()
        self.copy.to(device)
        for name, target in self.copy.state_dict().items():
            target.copy_(whole(current[name]))
        return self.copy.eval()

    def weights_in(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The final weights in a state dict of this learner."""
        prefix = "task." if self.average is None else "average.network."
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def average_momentum(step: int, decay: float) -> float:
    """The decay of timm's `ModelEmaV3` with its warm-up: the average follows at once at first, then ever more slowly.

    step: optimiser steps finished before this update.
    """
    return min(decay, 1 - (1 + step) ** (-2 / 3)) if step > 0 else 0.0
