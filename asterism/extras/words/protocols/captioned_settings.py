"""What protocols with sentences share: captioned images, and vectors of images and sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from asterism.data import Source
from asterism.data.parts import DataChoice, Parts
from asterism.data.sources.splits import UnknownSplit
from asterism.evals.base import ProtocolConfig
from asterism.extras.words.sources.captioned import Captioned
from asterism.extras.words.token_rows import token_rows
from asterism.nn.text_encoder import TextEncoder
from asterism.types import Features

_NOTE = "nothing is trained here: training and test images are the same"


@dataclass(frozen=True)
class CaptionedParts(Parts):
    """Captioned images; nothing is trained on them."""

    train: Captioned
    test: Captioned


def open_captioned_parts(open_data: Callable[[str, str | None], Captioned], choice: DataChoice) -> CaptionedParts:
    """The test part of captioned images, or all of them if they are not divided."""
    try:
        source = open_data(choice.path, choice.test_split or "test")
    except UnknownSplit:
        if choice.test_split is not None:
            raise
        source = open_data(choice.path, None)
    return CaptionedParts(source, source, (_NOTE,))


@dataclass(frozen=True)
class ImageVectors:
    """Unit vectors of the readable images in the space of texts, and their places in the source."""

    vectors: Float[Tensor, "n e"]
    places: list[int]
    unreadable: int


def image_vectors(config: ProtocolConfig, encoder: TextEncoder, source: Source) -> ImageVectors:
    def aligned(features: Features) -> Float[Tensor, "b 1 e"]:
        assert features.aligned is not None
        return features.aligned[:, None]

    found = token_rows(encoder, source, aligned, "aligned", batch_size=config.batch_size, workers=config.workers)
    return ImageVectors(found.tokens[:, 0], found.places, len(found.unreadable))


def text_vectors(encoder: TextEncoder, texts: Sequence[str]) -> Float[Tensor, "n e"]:
    return encoder.encode_text(texts).float().cpu()
