"""Encoders to compare with: raw pixels, and a network of the same shape that has learnt nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.nn.backbone import rebuild_backbone
from asterism.nn.concepts import ConceptEncoder, rebuild_reconstruction
from asterism.nn.encoder import IMAGENET_MEAN, IMAGENET_STD, Encoder
from asterism.nn.localization import Localization
from asterism.nn.reconstruction import CodeReconstruction
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


def untrained(encoder: Encoder, seed: int = 0) -> Encoder:
    """A network of the same shape with fresh weights; of a model with concepts, all but its frozen tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = _fresh(encoder)
    return fresh.to(next(encoder.parameters()).device).eval()


def whole_image_baselines(encoder: Encoder) -> dict[str, Encoder]:
    return _on_device_of(encoder, PixelEncoder())


def patch_baselines(encoder: Encoder) -> dict[str, Encoder]:
    """For protocols that read patches: those of the pixels are as large as the encoder's."""
    return _on_device_of(encoder, PixelPatches(encoder.image_size, patch_side(encoder)))


def concept_baselines(encoder: Encoder) -> dict[str, Encoder]:
    """For protocols that read concepts or a decoder, which pixels do not have."""
    return {} if isinstance(encoder, PixelEncoder) else {"untrained": untrained(encoder)}


def _on_device_of(encoder: Encoder, pixels: PixelEncoder) -> dict[str, Encoder]:
    if isinstance(encoder, PixelEncoder):
        return {}
    return {"untrained": untrained(encoder), "pixels": pixels.to(next(encoder.parameters()).device).eval()}


def _fresh(encoder: Encoder) -> Encoder:
    backbone = rebuild_backbone(encoder.backbone.architecture)
    pixels = (encoder.mean, encoder.std, encoder.image_size)
    if not isinstance(encoder, ConceptEncoder):
        return Encoder(backbone, *pixels)
    localization = Localization(backbone.dim, encoder.localization.temperature)
    own = encoder.reconstruction
    reconstruction = None if own is None else rebuild_reconstruction(own.describe())
    if isinstance(own, CodeReconstruction) and isinstance(reconstruction, CodeReconstruction):
        reconstruction.tokenizer = own.tokenizer
    return ConceptEncoder(backbone, localization, reconstruction, *pixels)
