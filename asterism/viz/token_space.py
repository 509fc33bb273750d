"""The tokens of each layer laid out in the plane by t-SNE (van der Maaten and Hinton, 2008), as dots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from asterism.errors import MissingExtra, UserError
from asterism.nn.encoder import Encoder
from asterism.viz.pictures import Pictures, principal_colors

_MARGIN = 0.04  # of the picture's side


@torch.no_grad()
def tokens_by_layer(
    encoder: Encoder, images: Pictures, blocks: Sequence[int], size: int = 320, seed: int = 0
) -> dict[str, UInt8[Tensor, "1 3 side side"]]:
    """Patch tokens of all images together after each of these blocks, as one picture of dots per block.

    A dot has the colour of its patch among the principal components of the last block, so that it can be followed from
    layer to layer.
    """
    chosen = [encoder.backbone.block_index(block) for block in blocks]
    *layers, last = encoder.backbone.layers(encoder.normalise(images), [*chosen, -1])
    colors = principal_colors(last.patches.cpu(), last.grid, last.grid[0]).permute(0, 2, 3, 1).reshape(-1, 3)
    planes = [tsne(tokens.patches.flatten(0, 1).float().cpu(), seed=seed) for tokens in layers]
    return {f"layer {block + 1}": dots(plane, colors, size)[None] for block, plane in zip(chosen, planes, strict=True)}


def tsne(tokens: Float[Tensor, "n d"], perplexity: float = 30.0, seed: int = 0) -> Float[Tensor, "n 2"]:
    """Places in the plane at which tokens that are alike (by cosine) are neighbours; a function of tokens and seed."""
    if len(tokens) < 4:
        raise UserError(f"t-SNE of {len(tokens)} tokens says nothing; give at least 4")
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingExtra("scikit-learn", "tsne") from None
    unit = normalize(tokens.float(), dim=1).numpy()  # for unit vectors Euclidean order is that of the cosine
    fitted = TSNE(
        n_components=2, perplexity=min(perplexity, (len(tokens) - 1) / 3), init="pca", random_state=seed
    ).fit_transform(unit)
    return torch.from_numpy(fitted)


def dots(
    places: Float[Tensor, "n 2"], colors: UInt8[Tensor, "n 3"], size: int, radius: float = 2.5
) -> UInt8[Tensor, "3 {size} {size}"]:
    """Round dots on white, `radius` in pixels; the places are scaled to fill the picture, later dots on top."""
    low, high = places.amin(dim=0), places.amax(dim=0)
    span = (high - low).max().clamp_min(1e-9)
    share = (places - (low + high) / 2) / span * (1 - 2 * _MARGIN) + 0.5
    centers = share * size - 0.5
    picture = torch.full((3, size, size), 255, dtype=torch.uint8)
    reach = int(radius) + 1
    across = torch.arange(-reach, reach + 1)
    for (x, y), color in zip(centers.round().long().tolist(), colors, strict=True):
        rows, columns = (y + across).clamp(0, size - 1), (x + across).clamp(0, size - 1)
        inside = (rows[:, None] - y) ** 2 + (columns - x) ** 2 <= radius**2
        at = rows[:, None].expand_as(inside)[inside], columns.expand_as(inside)[inside]
        picture[:, at[0], at[1]] = color[:, None]
    return picture
