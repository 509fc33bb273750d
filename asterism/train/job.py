"""A kind of training as the loop sees it: what is trained, on which batches, and what happens with the result.

Pretraining (`asterism.train.pretraining`) and fine-tuning (`asterism.finetuning.job`) are jobs. The loop gives each of
them steps and micro-batches, agreement between processes, clipping, checkpoints, monitoring and exact resume. All state
that a job needs to resume is in its learner's parameters and buffers, and every random draw is a function of (seed,
step, image). Besides that, the loop saves only what its log has not written yet.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from lightning_fabric import Fabric
from rich.console import RenderableType

from asterism.nn.learner import B, Learner
from asterism.train.checkpoint import CheckpointConfig, Facts, State
from asterism.train.cores import allowed_cores
from asterism.train.monitor import LoggingConfig
from asterism.train.optim import Clipping
from asterism.train.recipe import TrainerConfig
from asterism.train.run import Run
from asterism.types import Progress

T = TypeVar("T")

_NEVER = 2**40  # a step


@runtime_checkable
class Measurement(Protocol):
    """A measure of the learner, such as online k-NN or the accuracy on held-out images: before training, every
    `interval` steps, and at the end."""

    @property
    def interval(self) -> int | None:
        """None: ten times in a run whose length is given in minutes, unless that takes too much of them."""
        ...

    def measure(self, step: int) -> Mapping[str, float]:
        """The values by name. It may change buffers of the learner, which the next checkpoint then contains."""
        ...


class Job(ABC, Generic[B]):
    """One run: the learner and everything that the loop needs of it. Settings are resolved: no "auto" is left."""

    verb: ClassVar[str]  # the command that starts and resumes the run

    learner: Learner[B]
    run: Run  # its folder need not exist before training starts
    trainer: TrainerConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    clipping: Clipping
    images: int  # of the training data
    workers: int  # data workers of each process
    measurement: Measurement | None = None  # of this process; those of other processes may be None

    @property
    def steps(self) -> int | None:
        """Optimiser steps of the whole run; None if its length is given in minutes."""
        return self.trainer.steps

    @property
    def end(self) -> int:
        """The step before which batches end; a run of minutes stops taking them."""
        return _NEVER if self.steps is None else self.steps

    @property
    def batch_size(self) -> int:
        """Images per optimiser step, over all processes and micro-batches."""
        assert isinstance(self.trainer.batch_size, int)
        return self.trainer.batch_size

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.batch_size

    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the learner's parameters, which may be sharded by now."""

    @abstractmethod
    def set_schedules(self, optimizer: torch.optim.Optimizer, progress: Progress) -> float:
        """Set this step's learning rates and weight decay; returns the learning rate to log."""

    @abstractmethod
    def batches(self, start: int, fabric: Fabric) -> Iterator[tuple[B, float]]:
        """This process's micro-batches from step `start` on, each with the seconds spent waiting for it (`timed`)."""

    @abstractmethod
    def facts(self) -> Facts:
        """What a checkpoint records about the run, and a resumed run must not change."""

    @abstractmethod
    def saved(self, state: State) -> None:
        """Called on the first process after a checkpoint was written, to export weights from it."""

    @abstractmethod
    def describe(self, fabric: Fabric) -> RenderableType:
        """A summary of the run, shown before the first step."""

    @abstractmethod
    def advice(self, device: torch.device) -> str:
        """What makes steps cheaper, as a list in words."""

    @abstractmethod
    def verdict(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """The result in one sentence, from the logged records."""

    def ends_early(self, step: int) -> bool:
        """Whether training ends after this step, before its last one. All processes must agree."""
        return False

    def repair(self, state: State, finished: bool, report: Callable[[str], None]) -> None:
        """Make the exported files those of a run that has just saved this state; all processes call it.

        A process that was killed after writing the checkpoint leaves the files of the one before, or none.
        """


def timed(items: Iterator[T]) -> Iterator[tuple[T, float]]:
    """Each item with the seconds spent waiting for it."""
    while True:
        before = time.perf_counter()
        try:
            item = next(items)
        except StopIteration:
            return
        yield item, time.perf_counter() - before


@contextlib.contextmanager
def all_cores(device: torch.device) -> Iterator[None]:
    """For work that one process does while the others wait: on a CPU it uses all cores."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(allowed_cores())
    try:
        yield
    finally:
        torch.set_num_threads(threads)
