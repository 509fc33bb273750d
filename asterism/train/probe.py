"""The quality of the features during training: k-NN accuracy with labels, view retrieval without."""

from __future__ import annotations

from asterism.data import Source
from asterism.data.view_batches import DataConfig
from asterism.nn.encoder import Encoder
from asterism.nn.pixel_baseline import pixel_encoder
from asterism.train.online_knn import OnlineKnn, OnlineKnnConfig, open_online_knn
from asterism.train.view_retrieval import ViewRetrieval
from asterism.types import ViewSpec


class Probe:
    """A measure of an encoder, in percent, and the steps at which it is taken."""

    def __init__(self, measure: OnlineKnn | ViewRetrieval, interval: int, steps: int) -> None:
        self._measure = measure
        self._interval = interval
        self._steps = steps

    def is_due(self, step: int) -> bool:
        return step % self._interval == 0 or step == self._steps

    def record(self, encoder: Encoder) -> dict[str, float]:
        return {self._measure.name: self._measure.accuracy(encoder)}

    def first_record(self, encoder: Encoder) -> dict[str, float]:
        """The record before training: the initial encoder, and raw pixels of the same images.

        The encoder comes first, because the images are read once, at the size of the first.
        """
        record = self.record(encoder)
        pixels = self._measure.accuracy(pixel_encoder().to(next(encoder.parameters()).device))
        return record | {f"{self._measure.name}_pixels": pixels}


def open_probe(
    config: OnlineKnnConfig | None, data: DataConfig, source: Source, view: ViewSpec, steps: int, steps_per_epoch: int
) -> Probe | None:
    """The probe of a run, or None if it is disabled. source: the training data; view: one of the method's views."""
    if config is None:
        return None
    measure = open_online_knn(config, data) or ViewRetrieval(source, view)
    every = config.every_epochs
    interval = max(1, steps // 10) if every is None else max(1, round(every * steps_per_epoch))
    return Probe(measure, interval, steps)
