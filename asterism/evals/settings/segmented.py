"""Data with masks, shared by the protocols on segmentation."""

from __future__ import annotations

from asterism.data.parts import DataChoice, SegmentedParts, open_segmented_parts
from asterism.evals.base import Evaluation, ProtocolConfig


class SegmentedEvaluation(Evaluation):
    """A protocol whose training and test images have masks."""

    parts: SegmentedParts

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> SegmentedParts:
        return open_segmented_parts(choice, config.holdout, config.seed)
