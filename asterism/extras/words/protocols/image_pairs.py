"""What protocols with pairs of images share: the similarities of both images and both sentences."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.evals.base import ProtocolConfig
from asterism.extras.words.protocols.captioned_settings import image_vectors, text_vectors
from asterism.extras.words.sources.captioned import Captioned, pairs_of
from asterism.nn.text_encoder import TextEncoder


def pair_similarities(
    config: ProtocolConfig, encoder: TextEncoder, source: Captioned, template: str = "{}"
) -> tuple[Float[Tensor, "n 2 2"], list[str]]:
    """Similarity of image i and sentence j of every pair, and the pairs' categories."""
    pairs = pairs_of(source)
    found = image_vectors(config, encoder, source)
    if found.unreadable:
        raise UserError(
            f"{found.unreadable} images of {source.name} cannot be read, and a pair needs both of its images; restore "
            "them, or remove the pairs"
        )
    places = torch.tensor([pair.images for pair in pairs])
    texts = [template.replace("{}", text) for pair in pairs for text in pair.captions]
    sentences = text_vectors(encoder, texts).view(len(pairs), 2, -1)
    return found.vectors[places] @ sentences.mT, [pair.category for pair in pairs]
