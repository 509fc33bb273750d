"""Ctrl-C and SIGTERM: finish the step, save, and say how to go on."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopRequest:
    """Remembers the first signal; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self._received = 0
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._receive)
            except ValueError:  # not in the main thread: a notebook or a server decides about signals there
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def received(self) -> int:
        """The signal's number once this process got one, else 0."""
        return self._received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number
