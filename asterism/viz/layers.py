"""The tokens of an encoder layer by layer: layer 0 is the patch embedding, layer l what block l of 1 … depth makes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from asterism.nn.backbone import Backbone
from asterism.nn.encoder import Encoder
from asterism.types import Tokens
from asterism.viz.pictures import Pictures


def layers_of(backbone: Backbone, most: int | None = None) -> list[int]:
    """All layers that can be looked at, or at most so many of them, evenly chosen with the first and the last."""
    layers = [0, *range(backbone.first_block + 1, backbone.depth + 1)]
    if most is None or len(layers) <= most:
        return layers
    return [layers[round(place * (len(layers) - 1) / (most - 1))] for place in range(most)]


@torch.no_grad()
def tokens_of_layers(encoder: Encoder, images: Pictures, layers: Sequence[int]) -> list[Tokens]:
    """The tokens of each of these layers, those after a block with the final norm applied."""
    pixels, backbone = encoder.normalise(images), encoder.backbone
    blocks = sorted({layer - 1 for layer in layers if layer})
    found = dict(zip(blocks, backbone.layers(pixels, blocks) if blocks else [], strict=True))
    return [found[layer - 1] if layer else backbone.embedded(pixels) for layer in layers]
