"""What the first steps of a run show about all of it, while it is early enough to choose other settings."""

from __future__ import annotations

import time
from typing import Any

import torch

from asterism.train.job import Job
from asterism.train.units import duration
from asterism.types import Progress

LONG_HOURS = 2.0  # a longer run prints its duration and how to shorten it
_TIMED = 3  # steps, after the first
_EARLY = 0.05  # of the minutes, after which fewer steps must do
_FEW_STEPS, _FEW_EPOCHS, _ENOUGH_STEPS = 100, 3.0, 3000  # with so many steps, few epochs of many images teach too


class Pace:
    """The speed of a run, from its first steps. The very first is not timed."""

    def __init__(self, start: Progress) -> None:
        self.start = start.step
        self._since: float | None = None
        self.seconds: float | None = None  # per step

    def is_known(self, after: Progress) -> bool:
        """True once: after the fourth step, or earlier in a run of minutes that has already used a part of them."""
        done = after.step - self.start
        if self._since is None:
            self._since = time.monotonic()
        if self.seconds is not None or not (done > _TIMED or after.is_over or (done > 1 and after.share > _EARLY)):
            return False
        self.seconds = (time.monotonic() - self._since) / max(1, done - 1)
        return True


def outlook(job: Job[Any], pace: Pace, after: Progress, device: torch.device) -> str | None:
    """A sentence about a run that will take long, or whose minutes are too few; None if there is nothing to say."""
    if job.trainer.minutes is not None:
        return of_minutes(job.trainer.minutes, after.steps, after.steps_per_epoch, job.advice(device))
    assert pace.seconds is not None
    hours = pace.seconds * (after.steps - pace.start) / 3600
    return of_steps(hours, after.steps, job.advice(device)) if hours > LONG_HOURS else None


def before_start(job: Job[Any], device: torch.device) -> str | None:
    """A sentence about a run of too few steps, whatever its speed."""
    if job.steps is None or not _too_few(job.steps, job.steps_per_epoch):
        return None
    planned = f"{job.steps:,} steps are {job.steps / job.steps_per_epoch:.1f} epochs"
    return f"{planned}: too few to learn much. Take more (trainer.steps); they are faster with {job.advice(device)}"


def of_steps(hours: float, steps: int, cheaper: str) -> str:
    return (
        f"At this speed the run takes {duration(3600 * hours)}. To shorten it: fewer steps (trainer.steps, now "
        f"{steps:,}), a time limit (trainer.minutes=30), {cheaper}"
    )


def of_minutes(minutes: float, steps: int, steps_per_epoch: int, cheaper: str) -> str:
    epochs = steps / steps_per_epoch
    planned = f"At this speed {duration(60 * minutes)} are {steps:,} steps, {epochs:.1f} epochs"
    if not _too_few(steps, steps_per_epoch):
        return planned
    return f"{planned}: too few to learn much. More fit with more minutes, {cheaper}"


def _too_few(steps: int, steps_per_epoch: int) -> bool:
    return steps < _FEW_STEPS or (steps < _FEW_EPOCHS * steps_per_epoch and steps < _ENOUGH_STEPS)
