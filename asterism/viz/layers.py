"""The tokens of an encoder by layer, and where t-SNE (van der Maaten and Hinton, 2008) puts them in the plane.

Layer 0 is the patch embedding, layer l the output of block l of 1 … depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from asterism.errors import MissingExtra, UserError
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


FEWEST = 4  # tokens for a meaningful layout
_ROUNDS = 450  # of gradient descent; hundreds of tokens have converged by then


def tokens_by_layer(
    encoder: Encoder, images: Pictures, layers: Sequence[int], seed: int = 0
) -> dict[str, Float[Tensor, "n 2"]]:
    """Positions of the patch tokens of all images, in raster order, for each of these layers."""
    return {
        f"layer {layer}": tsne(tokens.patches.flatten(0, 1).float().cpu(), seed=seed)
        for layer, tokens in zip(layers, tokens_of_layers(encoder, images, layers), strict=True)
    }


def tsne(tokens: Float[Tensor, "n d"], perplexity: float = 30.0, seed: int = 0) -> Float[Tensor, "n 2"]:
    """Positions in the plane at which similar tokens (by cosine) are close; depends only on tokens and seed."""
    if len(tokens) < FEWEST:
        raise UserError(f"t-SNE of {len(tokens)} tokens is not meaningful; give at least {FEWEST}")
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtra("scikit-learn", "tsne") from None
    unit = normalize(tokens.float(), dim=1).numpy()  # for unit vectors, Euclidean and cosine order agree
    fitted = TSNE(
        n_components=2,
        perplexity=min(perplexity, (len(tokens) - 1) / 3),
        init="pca",
        max_iter=_ROUNDS,
        random_state=seed,
    ).fit_transform(unit)
    return torch.from_numpy(fitted)
