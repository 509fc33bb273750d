"""Several tokens of every image of a source, cached on disk: for training on a frozen encoder for many epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from asterism.data import Source
from asterism.data.crops import CenterCrops
from asterism.features.encoding import Workers
from asterism.features.extract import image_rows
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.types import Features


@dataclass(frozen=True)
class TokenRows:
    """Tokens of the readable images, on the CPU; mapped from a file."""

    tokens: Float[Tensor, "n t d"]
    places: list[int]  # of the readable images in their source
    unreadable: list[BadImage]


def token_rows(
    encoder: Encoder,
    source: Source,
    choose: Callable[[Features], Float[Tensor, "b t d"]],
    layer: str,
    *,
    batch_size: int,
    workers: Workers = "auto",
    dtype: torch.dtype = torch.float32,
) -> TokenRows:
    """The tokens that `choose` selects, of every readable image as `encode` sees it. layer: names the choice.

    Must be called by all processes of a run, which share the work.
    """
    size = encoder.image_size

    def rows(images: UInt8[Tensor, "b 3 s s"]) -> dict[str, list[Tensor]]:
        return {"tokens": list(choose(encoder.encode(images)).to("cpu", dtype))}

    identity = {"transform": size, "layer": layer, "dtype": str(dtype)}
    found = image_rows(encoder, source, CenterCrops(size, size), rows, identity, batch_size=batch_size, workers=workers)
    bad = {image.key for image in found.unreadable}
    places = [place for place, key in enumerate(source.keys()) if key not in bad]
    tokens = found.arrays["tokens"]
    return TokenRows(tokens.view(len(places), -1, tokens.shape[1]), places, found.unreadable)
