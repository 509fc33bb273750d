"""How long a run will take, known once a few steps have been made."""

from __future__ import annotations

import time


class Pace:
    """Watches the first steps of a run."""

    def __init__(self, start: int, steps: int) -> None:
        self._start, self._steps = start, steps
        self._since: float | None = None

    def hours(self, step: int) -> float | None:
        """Of the whole run, once, after the fourth step; the first one, which warms up, does not count."""
        made = step - self._start
        if made == 1:
            self._since = time.monotonic()
        if made != 4 or self._since is None:
            return None
        return (time.monotonic() - self._since) / 3 * (self._steps - self._start) / 3600
