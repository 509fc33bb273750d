"""Draws features and maps as pictures over their image, and text below it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate, normalize

from asterism.viz.console import one_line

Pictures = UInt8[Tensor, "b 3 h w"]
Magnified = UInt8[Tensor, "b 3 H W"]


def to_uint8(pixels: Float[Tensor, "b 3 h w"]) -> Pictures:
    """Pictures from values in [0, 1]."""
    return (pixels.clamp(0, 1) * 255).round().to(torch.uint8)


def magnified(images: Pictures, least: int = 192) -> Magnified:
    """Small images enlarged by an integer factor, so that maps drawn over them are smooth."""
    factor = -(-least // min(images.shape[2:]))
    return images.repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)


def principal_colors(patches: Float[Tensor, "b n d"], grid: tuple[int, int], size: int) -> Pictures:
    """The first three principal components of all patch tokens as red, green and blue: similar colour, similar token.

    The components are scaled between their 2nd and 98th percentile, so that outliers do not darken all others.
    """
    rows = normalize(patches.float().flatten(0, 1), dim=1)
    centred = rows - rows.mean(dim=0)
    # Few channels, many rows: the small covariance is enough. Signs are fixed so that equal features look equal.
    _, vectors = torch.linalg.eigh((centred.T @ centred).double().cpu())
    top = vectors[:, -3:].flip(1).to(centred)
    components = centred @ (top * top.sum(dim=0).sign())
    low, high = components.quantile(torch.tensor([0.02, 0.98], device=rows.device), dim=0)
    colors = ((components - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)
    maps = colors.view(*patches.shape[:2], 3).transpose(1, 2).reshape(-1, 3, *grid)
    return to_uint8(enlarge(maps, size))


def without_place(patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """Tokens minus their mean over images at the same position: the content without the position.

    After little training the position dominates a token, and its principal components would hide all others.
    """
    return patches - patches.mean(dim=0) if len(patches) > 1 else patches


def heat(maps: Float[Tensor, "b rows columns"], images: Pictures, span: tuple[float, float] | None = None) -> Pictures:
    """A map over each image: bright where the map is large.

    span: the values shown darkest and brightest; by default each map is scaled to its own range.
    """
    values = enlarge(maps[:, None].float(), images.shape[-1], smooth=True)
    if span is None:
        low, high = values.amin(dim=(2, 3), keepdim=True), values.amax(dim=(2, 3), keepdim=True)
    else:
        low, high = (values.new_tensor(end) for end in span)
    weight = ((values - low) / (high - low).clamp_min(1e-9)).clamp(0, 1)
    gray = images.float().mean(dim=1, keepdim=True) / 255
    return to_uint8(0.3 * gray + 0.7 * _glow(weight))


def similarity_maps(
    patches: Float[Tensor, "b n d"], grid: tuple[int, int], query: Int[Tensor, " b"]
) -> Float[Tensor, "b h w"]:
    """Cosine similarity of every patch to one patch of the same image."""
    unit = normalize(patches.float(), dim=-1)
    chosen = unit[torch.arange(len(unit)), query]
    return torch.einsum("bnd,bd->bn", unit, chosen).reshape(-1, *grid)


def enlarge(maps: Float[Tensor, "b c h w"], size: int, smooth: bool = False) -> Float[Tensor, "b c {size} {size}"]:
    """Maps at picture size; cells stay visible unless `smooth`."""
    if smooth:
        return interpolate(maps, (size, size), mode="bilinear", align_corners=False)
    return interpolate(maps, (size, size), mode="nearest-exact")


def _glow(weight: Float[Tensor, "b 1 h w"]) -> Float[Tensor, "b 3 h w"]:
    """A colour map from deep blue through violet and orange to pale yellow, with linear lightness."""
    stops = torch.tensor([[0.05, 0.03, 0.25], [0.48, 0.09, 0.49], [0.90, 0.36, 0.25], [0.99, 0.90, 0.55]])
    position = weight * (len(stops) - 1)
    lower = position.floor().clamp(max=len(stops) - 2)
    share = position - lower
    table = stops.to(weight)
    first, second = table[lower.long()[:, 0]], table[lower.long()[:, 0] + 1]
    return (first + (second - first) * share[:, 0, ..., None]).permute(0, 3, 1, 2)


_LEAST = 192  # pixels of the shorter side: smaller images are enlarged, so that the text is readable
_MOST = 2048  # pixels of the longer side: larger images are reduced, so that pages stay small


def captioned(image: UInt8[Tensor, "3 h w"], text: str) -> UInt8[Tensor, "3 _ _"]:
    """The image, enlarged if small and reduced if large, with the text on a strip below it; a long text is cut."""
    picture = magnified(_reduced(image).cpu(), _LEAST)[0]
    height, width = picture.shape[1:]
    size = max(16, min(height, width) // 12)
    strip = Image.new("RGB", (width, size * 2), "white")
    font = ImageFont.load_default(size)
    pen = ImageDraw.Draw(strip)
    text = one_line(text)
    while len(text) > 1 and pen.textlength(text, font=font) > width - size:
        text = text[:-2].rstrip() + "…"
    pen.text((size // 2, size // 3), text, fill="black", font=font)
    return torch.cat([picture, torch.from_numpy(np.array(strip)).permute(2, 0, 1)], dim=1)


def _reduced(image: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "1 3 _ _"]:
    sides, longer = image.shape[1:], max(image.shape[1:])
    if longer <= _MOST:
        return image[None]
    size = [max(1, round(side * _MOST / longer)) for side in sides]
    return F.interpolate(image[None], size, mode="bilinear", antialias=True)
