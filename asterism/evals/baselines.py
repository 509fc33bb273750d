"""Encoders to compare with: raw pixels, and a network of the same shape that has learnt nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.nn.backbone import rebuild_backbone
from asterism.nn.encoder import IMAGENET_MEAN, IMAGENET_STD, Encoder
from asterism.types import Features

_SIDE = 32  # pixels per side of the raw-pixel embedding


class PixelEncoder(Encoder):
    """The image itself, reduced to 32 × 32 pixels and flattened: what any learnt feature must beat."""

    def __init__(self) -> None:
        nn.Module.__init__(self)  # there is no backbone
        self.mean, self.std, self.image_size = IMAGENET_MEAN, IMAGENET_STD, _SIDE
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # tells `normalise` the device

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        if pixels.shape[-2:] != (_SIDE, _SIDE):
            pixels = F.interpolate(pixels, (_SIDE, _SIDE), mode="bilinear", antialias=True)
        flat = pixels.flatten(1)
        return Features(cls=flat, patches=flat[:, None], grid=(1, 1))


def untrained(encoder: Encoder, seed: int = 0) -> Encoder:
    """A network of the same shape with fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = rebuild_backbone(encoder.backbone.architecture)
    device = next(encoder.parameters()).device
    return Encoder(backbone, encoder.mean, encoder.std, encoder.image_size).to(device).eval()
