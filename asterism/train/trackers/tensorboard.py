"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from asterism.train.trackers.base import Ending, Tracker


class TensorBoard(Tracker):
    """Shown by `tensorboard --logdir runs`. On resume, events after the checkpoint's step are dropped."""

    def __init__(self, run: Path, start_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run), purge_step=start_step)

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, ending: Ending) -> None:
        self._writer.close()
