"""The time of a run whose length is given in minutes.

Everything counts from the call that starts or resumes the run: opening data, measuring, saving. What remains after the
first step, without the measurement and the checkpoint at the end, is the time for steps, and the run's progress is the
share of it that has passed. So schedules follow the clock, however fast the machine is at the moment.

The clock of the first process counts; the loop shares what it reads. Checkpoints contain the time used, and a resumed
run has what is left of its minutes: its progress continues where it was, and reaches 1 at the new end.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

_SECONDS, _SHARE = "clock.seconds", "clock.share"  # in a checkpoint
_UNKNOWN = 10_000  # steps of a run before any was timed
_REST = 4.0  # times its own duration that a measurement waits: measuring takes at most a fifth of the run
_MEASURING = 0.05  # of the minutes for one measurement, because those at the start and at the end are always made
_TIMED, _LEAST = 32, 100  # images


class Clock:
    """The time of one process's run from its start, or from where it is resumed, to its end."""

    def __init__(self, minutes: float | None, began: float) -> None:
        """minutes: None if time does not limit the run. began: when the run was started, by `time.monotonic`."""
        self._seconds = math.inf if minutes is None else 60 * minutes
        self.began, self._used = began, 0.0
        self._first_step: float | None = None
        self._steps = 0
        self._earlier = self._share = 0.0
        self._lasted: dict[str, float] = {}  # the newest measurement and checkpoint, in seconds
        self._measured = -math.inf

    def read(self) -> float:
        """The share of the time for steps that has passed, after each step; 1 if no other one fits.

        It starts with the first reading, because the first step also starts workers and compiles.
        """
        now = time.monotonic()
        if self._first_step is None:
            self._first_step = now
        taken, self._steps = now - self._first_step, self._steps + 1
        half_a_step = taken / max(1, self._steps - 1) / 2  # the run ends as near to its end as whole steps allow
        left = self.began + self._seconds - self._used - sum(self._lasted.values()) - half_a_step - now
        share = 1.0 if left <= 0 else self._earlier + (1 - self._earlier) * taken / (taken + left)
        self._share = max(self._share, share)
        return self._share

    @contextlib.contextmanager
    def timed(self, work: str) -> Iterator[None]:
        """What the run does again at its end, and has to leave time for."""
        start = time.monotonic()
        yield
        now = time.monotonic()
        self._lasted[work] = now - start
        if work == "measurement":
            self._measured = now

    @property
    def has_rested(self) -> bool:
        """Whether another measurement keeps the time of all below its share."""
        return time.monotonic() - self._measured >= _REST * self._lasted.get("measurement", 0.0)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; nothing if time does not limit the run."""
        if math.isinf(self._seconds):
            return {}
        used = self._used + time.monotonic() - self.began
        return {
            name: torch.tensor(value, dtype=torch.double) for name, value in ((_SECONDS, used), (_SHARE, self._share))
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The opposite of `state`."""
        if _SECONDS in state:
            self._used, self._earlier = float(state[_SECONDS]), share_in(state)
            self._share = self._earlier


def fitting_stride(minutes: float, images: int, measure: Callable[[range], object]) -> int:
    """N such that measuring every n-th of the images takes a small share of the minutes; a few are measured to know."""
    if images < 2 * _LEAST:
        return 1
    few = range(_TIMED)
    before = time.monotonic()
    measure(few)
    expected = (time.monotonic() - before) * images / len(few)
    return max(1, min(math.ceil(expected / (60 * _MEASURING * minutes)), images // _LEAST))


def share_in(state: Mapping[str, Tensor]) -> float:
    """The share of its time that a run in minutes had used at a checkpoint."""
    return float(state.get(_SHARE, 0.0))


def expected_steps(step: int, share: float) -> int:
    """Steps of the whole run at its speed so far: after `step` of them this share of the time has passed."""
    if share >= 1:
        return step
    return max(step + 1, math.ceil(step / share)) if share > 0 else step + _UNKNOWN
