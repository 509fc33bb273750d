"""The contract of an evaluation: it takes an encoder and sources of images, and yields named values.

A protocol is one file in this folder: a docstring whose first line says what it measures, its settings, and one class
derived from `Evaluation`. It does not depend on methods, runs or the command line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from asterism.config import Config
from asterism.data.parts import DataChoice, Parts, open_labelled
from asterism.evals.baselines import whole_image_baselines
from asterism.features.encoding import Workers
from asterism.nn.encoder import Encoder
from asterism.ranges import Count, InnerShare, Seed


class ProtocolConfig(Config):
    """Settings that every protocol has; a protocol adds its constants."""

    holdout: InnerShare = 0.2  # share of every class to test on, if the data has no test part
    seed: Seed = 0  # of the draws: which images are held out, which labels are used
    batch_size: Count = 128  # images encoded at a time; does not change the result
    workers: Workers = "auto"  # processes that decode images; does not change the result


class Evaluation(ABC):
    """One protocol with its settings, on one data set."""

    Config: ClassVar[type[ProtocolConfig]]
    opened: ClassVar[staticmethod[[DataChoice, float, int], Parts]] = staticmethod(open_labelled)

    def __init__(self, config: ProtocolConfig, parts: Parts) -> None:
        self.config = config
        self.parts = parts

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        """Open the training and test parts. By default labelled images; other protocols open other data."""
        return cls.opened(choice, config.holdout, config.seed)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        """All values that `measure` may yield with these settings; empty if they are not known in advance."""
        return []

    @abstractmethod
    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        """Named values, accuracies in percent."""

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        """Untrained encoders to compare with."""
        return whole_image_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        """Everything that must be equal for two results to be comparable."""
        return self.config.model_dump(mode="json", exclude={"batch_size", "workers"})

    def notes(self) -> list[str]:
        """Remarks for the reader of the values."""
        return list(self.parts.notes)
