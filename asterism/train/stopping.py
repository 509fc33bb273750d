"""Ctrl-C and SIGTERM: finish the step, save, and print how to resume."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType

_ANSWER = "Stopping after this step, then saving. Press Ctrl-C again to stop now; the last checkpoint stays valid."


class StopRequest:
    """Records the first signal and confirms it at once; a second Ctrl-C stops without saving."""

    def __init__(self, answer: Callable[[str], None]) -> None:
        self._answer = answer
        self._received = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._receive)
            except ValueError:  # not in the main thread: a notebook or a server handles signals there
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def received(self) -> int:
        """The number of the signal that this process received, else 0."""
        return self._received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number
        self._answer(_ANSWER)
