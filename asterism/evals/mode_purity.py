"""Modes of patch tokens against true masks: whether mean-shift inside an image groups patches of one object.

FLSL's first level: every patch attends to all patches of its image with softmax(τ z·z'), τ = scale/√d, and moves to
their mean. `same_class` is the attention weight on patches of the same class, `chance` its value with equal weights,
and `gain` the fraction of the gap from `chance` to 100 that is closed. `nearest` is the share of patches whose most
similar other patch has the same class. `entropy` is that of the weights, in percent of ln n: near 100 all modes are the
same. Patches take the majority class of their pixels; void ones are ignored. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.data.parts import SegmentedParts, open_segmented_parts
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import patch_baselines
from asterism.evals.settings import WholeImagesConfig
from asterism.images.masks import VOID
from asterism.nn.encoder import Encoder
from asterism.ops.patch_labels import class_counts, majority_labels
from asterism.ranges import Positive

_NAMES = ("same_class", "chance", "nearest", "entropy")


class ModePurityConfig(WholeImagesConfig):
    """Constants of the protocol."""

    scale: Positive = 0.1  # of dot products, in units of 1/√d; FLSL's own inside a view is 0.1


class ModePurity(Evaluation):
    """How well modes group patches of one class, in percent."""

    Config = ModePurityConfig
    config: ModePurityConfig
    parts: SegmentedParts
    opened = staticmethod(open_segmented_parts)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return [*_NAMES, "gain"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        source, classes = self.parts.test, len(self.parts.classes)
        sums, patches = torch.zeros(len(_NAMES), dtype=torch.float64), 0
        for batch in self.config.batches("mode-purity", encoder, source):
            features = encoder.encode(batch.images)
            rows, columns = features.grid
            cell = (batch.masks.shape[1] // rows, batch.masks.shape[2] // columns)
            labels = majority_labels(class_counts(batch.masks, cell, classes, VOID), VOID).flatten(1)
            for tokens, own in zip(features.patches.float().cpu(), labels, strict=True):
                known = own != VOID
                if known.sum() > 1:
                    found = mode_agreement(tokens[known], own[known], self.config.scale)
                    sums += found.double().sum(0)
                    patches += len(found)
        if not patches:
            raise UserError(f"no image of {source.name} has two patches of known classes")
        values = dict(zip(_NAMES, (100 * sums / patches).tolist(), strict=True))
        yield from values.items()
        room = 100 - values["chance"]
        yield "gain", 100 * (values["same_class"] - values["chance"]) / room if room > 0 else 0.0

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return patch_baselines(encoder)


def mode_agreement(tokens: Float[Tensor, "n d"], labels: Int[Tensor, " n"], scale: float) -> Float[Tensor, "n 4"]:
    """For each token: weight on its class, share of its class, whether its nearest neighbour has its class, and
    entropy/ln n."""
    n, d = tokens.shape
    logits = tokens @ tokens.mT * (scale / d**0.5)
    weights = torch.softmax(logits, dim=1)
    same = (labels[:, None] == labels).float()
    unit = F.normalize(tokens, dim=1)
    nearest = (unit @ unit.mT).fill_diagonal_(-2).argmax(1)
    entropy = torch.special.entr(weights).sum(1) / torch.tensor(float(n)).log()
    return torch.stack([(weights * same).sum(1), same.mean(1), same[torch.arange(n), nearest], entropy], dim=1)
