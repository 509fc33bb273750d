"""Which concepts of an image some words mean, and where in the image they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.extras.words.aligned import AlignedEncoder
from asterism.types import Features


@dataclass(frozen=True)
class WordMaps:
    """Similarities of words and images."""

    concepts: Float[Tensor, "b words r"] | None  # cosine with each concept alone; None if the probe reads patches
    where: Float[Tensor, "b words rows columns"]  # similarity of each patch: that of its concepts, by their shares


@torch.no_grad()
def word_maps(encoder: AlignedEncoder, features: Features, texts: Sequence[str]) -> WordMaps:
    """Where the probe finds what the words say.

    The probe pools each token as if it were the only one of the image, which gives it a vector in the space of texts. A
    patch has the similarities of its concepts, weighted by how much of it belongs to each.
    """
    choice, words = encoder.alignment.tokens, encoder.encode_text(texts)

    def likeness(tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b words t"]:
        return words @ F.normalize(encoder.alignment.probe.one_by_one(tokens), dim=2).mT

    if choice.startswith("sparse") and features.sparse is not None and features.where is not None:
        concepts = likeness(features.sparse)
        return WordMaps(concepts, torch.einsum("bwr,brij->bwij", concepts, features.where))
    if choice in ("patches", "mean-patch"):
        where = likeness(features.patches)
        return WordMaps(None, where.view(*where.shape[:2], *features.grid))
    raise UserError(
        f"this model was aligned with probe.tokens={choice}, which has no place in the image; align the encoder again "
        "with probe.tokens=sparse or patches to see where words are"
    )
