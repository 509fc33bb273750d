"""Which patches of an image belong together: similarity summed over all patches, and attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from asterism.nn.encoder import Encoder
from asterism.viz.layers import layers_of, tokens_of_layers
from asterism.viz.pictures import Magnified, Pictures, heat, magnified

_MARK = torch.tensor([60, 255, 80], dtype=torch.uint8)  # green


def aggregated_similarity(patches: Float[Tensor, "b n d"], grid: tuple[int, int]) -> Float[Tensor, "b rows columns"]:
    """The cosine-similarity maps of all patches summed, divided by the map's maximum (FLSL, section 5.5).

    If patches are similar only to those of their own object, brightness shows the object's share of the image. The sum
    of all maps at patch i is u_i · Σ_j u_j for unit tokens u, so the n × n similarities are not needed.
    """
    unit = normalize(patches.float(), dim=-1)
    score = (unit * unit.sum(dim=1, keepdim=True)).sum(dim=-1)
    return (score / score.amax(dim=1, keepdim=True).clamp_min(1e-12)).reshape(-1, *grid)


def aggregated_similarity_by_layer(
    encoder: Encoder, images: Pictures, layers: Sequence[int] | None = None
) -> dict[str, Magnified]:
    """Aggregated similarity in each of these layers (0 is the patch embedding; default: all), drawn over the images.

    Brightness is the score from 0 to 1, so that images and networks can be compared: darker means smaller clusters.
    """
    chosen = layers_of(encoder.backbone) if layers is None else list(layers)
    canvas = magnified(images)
    return {
        f"layer {layer}": heat(aggregated_similarity(tokens.patches, tokens.grid).cpu(), canvas, span=(0.0, 1.0))
        for layer, tokens in zip(chosen, tokens_of_layers(encoder, images, chosen), strict=True)
    }


@torch.no_grad()
def attention_by_head(encoder: Encoder, images: Pictures, block: int = -1) -> dict[str, Magnified]:
    """The attention of each head of a block: of the class token, or the mean of all patches if there is none."""
    pixels = encoder.normalise(images)
    attention, grid = encoder.backbone.attention(pixels, block), encoder.backbone.grid_of(pixels)
    maps = looked_at(attention, grid, encoder.backbone.has_cls).cpu()
    canvas = magnified(images)
    return {f"head {head + 1}": heat(maps[:, head], canvas) for head in range(maps.shape[1])}


def looked_at(
    attention: Float[Tensor, "b heads t t"], grid: tuple[int, int], from_class_token: bool
) -> Float[Tensor, "b heads rows columns"]:
    """The attention of each head to each patch. The class token is the first token, patches are the last ones."""
    patches = grid[0] * grid[1]
    queries = attention[:, :, :1] if from_class_token else attention[:, :, -patches:]
    return queries[..., -patches:].mean(dim=2).reshape(*attention.shape[:2], *grid)


@torch.no_grad()
def probe_attention(encoder: Encoder, images: Pictures, query: Int[Tensor, " b"], block: int = -1) -> Magnified:
    """The attention of one patch of each image in a block, mean over heads; a green ring marks the patch."""
    pixels = encoder.normalise(images)
    grid = encoder.backbone.grid_of(pixels)
    maps = probed(encoder.backbone.attention(pixels, block), grid, query.to(pixels.device))
    return ringed(heat(maps.cpu(), magnified(images)), grid, query)


def probed(
    attention: Float[Tensor, "b heads t t"], grid: tuple[int, int], query: Int[Tensor, " b"]
) -> Float[Tensor, "b rows columns"]:
    """The attention of patch `query` (raster index) to every patch, mean over heads. Patches are the last tokens."""
    patches = grid[0] * grid[1]
    among = attention[:, :, -patches:, -patches:].mean(dim=1)
    return among[torch.arange(len(among), device=among.device), query].reshape(-1, *grid)


def ringed(pictures: Pictures, grid: tuple[int, int], query: Int[Tensor, " b"]) -> Pictures:
    """The pictures with a ring around one patch each."""
    height, width = pictures.shape[-2:]
    rows = (torch.arange(height) + 0.5) * grid[0] / height
    columns = (torch.arange(width) + 0.5) * grid[1] / width
    center_row, center_column = (
        (query.cpu() // grid[1] + 0.5)[:, None, None],
        (query.cpu() % grid[1] + 0.5)[:, None, None],
    )
    distance = ((rows[:, None] - center_row) ** 2 + (columns - center_column) ** 2).sqrt()  # in patches
    thickness = max(0.15, 1.5 * grid[0] / height)  # at least a pixel and a half
    ring = (distance - 0.6).abs() < thickness / 2
    return torch.where(ring[:, None], _MARK[:, None, None], pictures)
