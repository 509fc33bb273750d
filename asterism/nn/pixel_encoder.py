"""Raw pixels as an encoder: what any learnt feature must beat."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.nn.encoder import IMAGENET_MEAN, IMAGENET_STD, Encoder
from asterism.types import Features

_SIDE = 32  # pixels per side of the raw-pixel embedding


class PixelEncoder(Encoder):
    """The image itself, reduced to 32 × 32 pixels and flattened: what any learnt feature must beat."""

    def __init__(self) -> None:
        nn.Module.__init__(self)  # there is no backbone
        self.mean, self.std, self.image_size = IMAGENET_MEAN, IMAGENET_STD, _SIDE
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # tells `normalise` the device

    @property
    def patch_size(self) -> int:
        return self.image_size

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        if pixels.shape[-2:] != (_SIDE, _SIDE):
            pixels = F.interpolate(pixels, (_SIDE, _SIDE), mode="bilinear", antialias=True)
        flat = pixels.flatten(1)
        return Features(cls=flat, patches=flat[:, None], grid=(1, 1))


class PixelPatches(PixelEncoder):
    """The pixels of every patch as they are: the same for protocols that read patches."""

    def __init__(self, image_size: int, patch_size: int) -> None:
        super().__init__()
        self.image_size = image_size
        self.register_buffer("side", torch.tensor(patch_size))  # in the state, which tells two encoders apart

    @property
    def patch_size(self) -> int:
        return int(self.get_buffer("side"))

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        grid = (pixels.shape[2] // self.patch_size, pixels.shape[3] // self.patch_size)
        patches = F.unfold(pixels, self.patch_size, stride=self.patch_size).mT
        return Features(cls=patches.mean(1), patches=patches, grid=grid)


def patch_side(encoder: Encoder) -> int:
    """What the sides of images must be multiples of: a patch, or the whole image where there are none."""
    return encoder.patch_size if isinstance(encoder, PixelEncoder) else encoder.backbone.patch_size
