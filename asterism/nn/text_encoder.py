"""The contract of an encoder that also reads: images and sentences have vectors in one space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.types import Features


@dataclass(frozen=True)
class WordMaps:
    """Similarities of words and images."""

    concepts: Float[Tensor, "b words r"] | None  # cosine with each concept alone; None if patches are compared
    where: Float[Tensor, "b words rows columns"]  # similarity of each patch: that of its concepts, by their shares


class TextEncoder(Encoder):
    """An encoder whose features also have `aligned`, one unit vector per image in the space of its texts."""

    @property
    def aligned_from(self) -> frozenset[str]:
        """The fields of `Features` that `align` reads."""
        raise NotImplementedError

    def align(self, features: Features) -> Float[Tensor, "b e"]:
        """Unit vectors of images in the space of texts, from their other features."""
        raise NotImplementedError

    def encode_text(self, texts: str | Sequence[str]) -> Float[Tensor, "n e"]:
        """Unit vectors of sentences: `encoder.encode(images).aligned @ encoder.encode_text(texts).T` compares them."""
        raise NotImplementedError

    def word_maps(self, features: Features, texts: Sequence[str]) -> WordMaps:
        """Which concepts of an image some words mean, and where in the image they are."""
        raise NotImplementedError

    def frozen(self) -> Encoder:
        """The encoder that was aligned, without what reads text."""
        raise NotImplementedError


def needs_text(encoder: Encoder, what: str) -> TextEncoder:
    """The encoder, if it is aligned with text. what: the thing that needs it, for the error."""
    if isinstance(encoder, TextEncoder):
        return encoder
    raise UserError(
        f"{what} needs a model that is aligned with text, and this one is not; align it first: "
        "asterism align MODEL --data CAPTIONS --out RUN"
    )
