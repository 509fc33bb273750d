"""The tokens of an encoder by layer: layer 0 is the patch embedding, layer l the output of block l of 1 … depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from asterism.nn.backbone import Backbone
from asterism.nn.encoder import Encoder
from asterism.types import Tokens
from asterism.viz.pictures import Pictures


def layers_of(backbone: Backbone, most: int | None = None) -> list[int]:
    """All layers that can be drawn, or at most `most` of them, evenly spaced and including the first and the last."""
    layers = [0, *range(backbone.first_block + 1, backbone.depth + 1)]
    if most is None or len(layers) <= most:
        return layers
    return [layers[round(place * (len(layers) - 1) / (most - 1))] for place in range(most)]


@torch.no_grad()
def tokens_of_layers(encoder: Encoder, images: Pictures, layers: Sequence[int]) -> list[Tokens]:
    """The tokens of each of these layers; the final norm is applied to those after a block."""
    pixels, backbone = encoder.normalise(images), encoder.backbone
    blocks = sorted({layer - 1 for layer in layers if layer})
    found = dict(zip(blocks, backbone.layers(pixels, blocks) if blocks else [], strict=True))
    return [found[layer - 1] if layer else backbone.embedded(pixels) for layer in layers]
