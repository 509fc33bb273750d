"""Concepts against true masks: whether every concept of an image covers one object.

The share of pixels that belong to the majority class of the concept they are assigned to, in percent, averaged over
images. Each patch is divided among concepts according to their maps, and among classes according to its pixels.
`purity_of_one` is the purity of a single concept for the whole image, the share of its largest class; `purity_gain` is
the fraction of the gap from there to 100 that is closed. `concepts_in_use` is the number of concepts of equal size that
would have the same entropy. Void pixels are ignored. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data.parts import SegmentedParts, open_segmented_parts
from asterism.data.sources.segmented import SegmentedBatch
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.settings import WholeImagesConfig
from asterism.images.masks import VOID
from asterism.nn.encoder import Encoder
from asterism.ops.patch_labels import class_counts
from asterism.ops.purity import effective_count, largest_share, purity


class ConceptPurity(Evaluation):
    """Purity of concepts, and values to compare it with."""

    Config = WholeImagesConfig
    config: WholeImagesConfig
    parts: SegmentedParts
    opened = staticmethod(open_segmented_parts)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["purity", "purity_of_one", "purity_gain", "concepts_in_use"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        source = self.parts.test
        batches = self.config.batches("concept-purity", encoder, source)
        found = [concept_mass(encoder, batch, len(self.parts.classes)) for batch in batches]
        mass = torch.cat(found) if found else torch.zeros(0, 1, 1)
        mass = mass[mass.sum((1, 2)) > 0]
        if not len(mass):
            raise UserError(f"every pixel of {source.name} is void; there is nothing to compare concepts with")
        reached, least = purity(mass).mean().item(), largest_share(mass).mean().item()
        yield "purity", 100 * reached
        yield "purity_of_one", 100 * least
        yield "purity_gain", 100 * (reached - least) / (1 - least) if least < 1 else 0.0
        yield "concepts_in_use", effective_count(mass.sum(2)).mean().item()

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return concept_baselines(encoder)


def concept_mass(encoder: Encoder, batch: SegmentedBatch, classes: int) -> Float[Tensor, "b r c"]:
    """Pixels of every class that each concept covers; a patch is divided according to the maps."""
    features = encoder.encode(batch.images)
    if features.where is None:
        raise UserError("this encoder has no concepts; evaluate a run of stellar, or a STELLAR checkpoint")
    rows, columns = features.grid
    height, width = batch.masks.shape[1:]
    counts = class_counts(batch.masks, (height // rows, width // columns), classes, VOID)[..., :-1]
    return torch.einsum("brhw,bhwc->brc", features.where.double().cpu(), counts.double())
