"""Several tokens of every image of a source, cached on disk: for training on a frozen encoder for many epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.data import EvaluationBatch, Source
from asterism.features.cache import stored
from asterism.features.encoding import Workers, cropped_blocks
from asterism.features.extract import nothing_readable, origin
from asterism.features.rows import Block
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

    def block(batch: EvaluationBatch) -> Block:
        rows = list(choose(encoder.encode(batch.images)).to("cpu", dtype)) if batch.keys else []
        return Block(batch.keys, {"tokens": rows}, None, batch.bad)

    def blocks(first: int, end: int) -> Iterator[Block]:
        images = range(first, end)
        return cropped_blocks(encoder, source, images, size, block, batch_size=batch_size, workers=workers)

    identity = {**origin(encoder, source), "transform": size, "layer": layer, "dtype": str(dtype)}
    found = stored(identity, len(source), blocks, batch_size=batch_size)
    if not found.keys:
        raise nothing_readable(source, found.unreadable)
    bad = {image.key for image in found.unreadable}
    places = [place for place, key in enumerate(source.keys()) if key not in bad]
    rows = found.arrays["tokens"]
    return TokenRows(rows.view(len(places), -1, rows.shape[1]), places, found.unreadable)
