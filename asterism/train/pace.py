"""The expected duration of a run, estimated from its first steps."""

from __future__ import annotations

import time


class Pace:
    """Times the first steps of a run."""

    def __init__(self, start: int, steps: int) -> None:
        self._start, self._steps = start, steps
        self._since: float | None = None

    def hours(self, step: int) -> float | None:
        """Expected hours of the whole run, after the fourth step; None after all others. The first is not timed."""
        done = step - self._start
        if done == 1:
            self._since = time.monotonic()
        if done != 4 or self._since is None:
            return None
        return (time.monotonic() - self._since) / 3 * (self._steps - self._start) / 3600
