"""Draws concept maps, each concept in its own colour, and measures reconstructions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from asterism.images.palette import palette
from asterism.ops.image_quality import psnr
from asterism.viz.page import Tile
from asterism.viz.pictures import Pictures, enlarge, to_uint8

_NAMED = 10  # colours of masks, chosen by eye
_LEVELS = torch.tensor([0.1, 0.4, 0.7, 1.0])  # of red, green and blue in the colours after them


def concept_colors(count: int) -> Float[Tensor, "{count} 3"]:
    """A colour in [0, 1] for each concept; a concept keeps its colour in every picture.

    The first ones are the mask colours; each further one is the colour farthest from all before it.
    """
    chosen = torch.tensor(palette(_NAMED + 1)[1:]) / 255
    others = torch.cartesian_prod(_LEVELS, _LEVELS, _LEVELS)
    others = others[others.amax(dim=1) > 0.5]  # dark colours are not visible over images
    while len(chosen) < count:
        farthest = torch.cdist(others, chosen).amin(dim=1).argmax()
        chosen = torch.cat([chosen, others[farthest][None]])
    return chosen[:count]


def strongest_concepts(where: Float[Tensor, "b r rows columns"], images: Pictures) -> Pictures:
    """The image in grey, every patch tinted in the colour of its strongest concept."""
    strongest = enlarge(where.float().cpu(), images.shape[-1], smooth=True).argmax(dim=1)
    colors = concept_colors(where.shape[1])[strongest].permute(0, 3, 1, 2)
    return _tinted(colors, torch.ones(len(images), 1, *images.shape[2:]), images)


def concept_map(where: Float[Tensor, "b r rows columns"], token: int, images: Pictures) -> Pictures:
    """The image in grey, tinted in one concept's colour by the concept's share of every patch.

    Full strength is the largest share of any concept in the image, so that the maps of an image are comparable.
    """
    shares = where[:, token : token + 1].float().cpu() / where.float().cpu().amax(dim=(1, 2, 3), keepdim=True)
    color = concept_colors(where.shape[1])[token][:, None, None].expand(images.shape)
    return _tinted(color, enlarge(shares, images.shape[-1], smooth=True), images)


def taken_apart(where: Float[Tensor, "b r rows columns"], images: Pictures) -> list[list[Tile]]:
    """For each image, the map of every concept, captioned with the concept's share of the image."""
    maps = [concept_map(where, token, images) for token in range(where.shape[1])]
    shares = where.float().mean(dim=(2, 3)).tolist()
    return [
        [Tile(maps[token][image], f"concept {token}, {share:.0%}") for token, share in enumerate(row)]
        for image, row in enumerate(shares)
    ]


def reconstruction_quality(made: Float[Tensor, "b 3 H W"], images: Pictures) -> Float[Tensor, " b"]:
    """PSNR in decibels, at the size of the images."""
    return psnr(at_size(made, images.shape[-1]).cpu(), images.cpu().float() / 255)


def at_size(made: Float[Tensor, "b 3 H W"], size: int) -> Float[Tensor, "b 3 {size} {size}"]:
    """Resize reconstructions; a tokenizer may decode to another size than the encoder's input."""
    if made.shape[-1] == size:
        return made
    return interpolate(made, (size, size), mode="bicubic", antialias=True).clamp(0, 1)


def _tinted(color: Float[Tensor, "b 3 h w"], strength: Float[Tensor, "b 1 h w"], images: Pictures) -> Pictures:
    """Tint images so that their lightness stays visible; untinted parts are grey and darker than the image."""
    gray = images.cpu().float().mean(dim=1, keepdim=True) / 255
    return to_uint8((1 - strength) * 0.55 * gray + strength * color * (0.6 + 0.4 * gray))
