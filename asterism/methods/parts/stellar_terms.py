"""The terms of STELLAR's loss: their weights, and the views and parts that the terms in use need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asterism.config import Config
from asterism.ranges import NonNegative

if TYPE_CHECKING:
    from asterism.methods.stellar import StellarConfig


class Weights(Config):
    """Weights of the loss terms; 0 leaves a term out. The reconstruction's weight is in its own settings."""

    cluster: NonNegative = 1.0
    align: NonNegative = 1.0
    cls_cluster: NonNegative = 1.0
    cls_masked: NonNegative = 1.0
    cls_local: NonNegative = 1.0
    koleo: NonNegative = 0.1  # of the clean view's concepts
    koleo_masked: NonNegative = 0.1


@dataclass(frozen=True)
class Needs:
    """What the terms in use need. Other views are not made, and parameters that no term uses are not trained."""

    masked_views: int
    local_views: int
    vocabulary: bool
    class_vocabulary: bool


def needs_of(config: StellarConfig) -> Needs:
    weights, classes = config.weights, config.class_vocabulary is not None
    reads_masked = weights.align or weights.koleo_masked or (classes and weights.cls_masked)
    masked = config.masked_views if reads_masked else 0
    local = config.local_views if classes and weights.cls_local else 0
    return Needs(
        masked_views=masked,
        local_views=local,
        vocabulary=bool(weights.cluster or (weights.align and masked)),
        class_vocabulary=classes and bool(weights.cls_cluster or (weights.cls_masked and masked) or local),
    )
