"""Schedules: values that change during training, as pure functions of its progress."""

from __future__ import annotations

import math
from typing import Literal

from asterism.types import Progress


def cosine(step: int, steps: int, start: float, final: float) -> float:
    """Half a cosine from `start` at step 0 towards `final`, which step `steps` (one past the last) would reach."""
    return final + (start - final) * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


def warmup_cosine(
    step: int,
    steps: int,
    peak: float,
    final: float,
    warmup_steps: int,
    start: float = 0.0,
    first_peak: Literal["last", "next"] = "last",
) -> float:
    """`ramp` from `start` to `peak` over `warmup_steps`, then `cosine` from `peak` to `final` over the remaining steps.

    The cosine starts at the peak. The warm-up reaches it in its last step, so that two steps have the same value, or
    would reach it in the next one.
    """
    if step < warmup_steps:
        return ramp(step, warmup_steps + (first_peak == "next"), start, peak)
    return cosine(step - warmup_steps, steps - warmup_steps, peak, final)


def ramp(position: int, length: int, start: float, final: float) -> float:
    """A straight line from `start` at position 0 to `final` at position `length - 1`, then `final`."""
    if position >= length:
        return final
    return start + (final - start) * position / max(1, length - 1)


def ramp_per_epoch(progress: Progress, epochs: int, start: float, final: float) -> float:
    """`ramp` in steps of one epoch: the teacher temperature of DINO, iBOT, FLSL and CrIBo."""
    return ramp(progress.epoch, epochs, start, final)


def ramp_per_step(progress: Progress, epochs: int, start: float, final: float) -> float:
    """`ramp` over the steps of the first `epochs`: the teacher temperature of SOP."""
    return ramp(progress.step, epochs * progress.steps_per_epoch, start, final)
