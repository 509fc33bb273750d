"""Raw pixels as an encoder: a baseline for learned features."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.nn.backbone import Architecture, Backbone
from asterism.nn.encoder import Encoder
from asterism.types import Tokens

_SIDE = 32  # pixels per side of the whole image


def pixel_encoder() -> Encoder:
    """The image itself, reduced to 32 × 32 pixels and flattened."""
    return Encoder(_Thumbnail(_SIDE, _SIDE)).eval()


def pixel_patches(image_size: int, patch_size: int) -> Encoder:
    """The pixels of every patch, unchanged: the baseline of protocols that read patches."""
    return Encoder(_Patches(image_size, patch_size)).eval()


class _Pixels(Backbone):
    """A single-layer network without weights, whose patch tokens are pixels."""

    takes_masks: ClassVar[bool] = False

    def __init__(self, image_size: int, patch_size: int) -> None:
        super().__init__()
        kind = "whole" if isinstance(self, _Thumbnail) else "patches"
        self.architecture = Architecture("pixels", {"kind": kind, "img_size": image_size, "patch_size": patch_size})
        self.network = nn.Identity()
        self.image_size = image_size
        self.patch_size = patch_size
        self.dim = 3 * patch_size**2
        self.depth = 1
        self.has_cls = False
        self.registers = 0
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # holds device and precision

    def forward(self, pixels: Float[Tensor, "b 3 h w"], **options: Any) -> Tokens:
        assert options.get("mask") is None, "raw pixels are not trained"
        assert options.get("keep") is None, "raw pixels are not trained"
        return self.embedded(pixels)

    @abstractmethod
    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens: ...

    def layers(self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int]) -> list[Tokens]:
        tokens = self.embedded(pixels)
        return [tokens for block in blocks if self.block_index(block) == 0]

    def block_outputs(
        self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int], *, drop_keys: Int[Tensor, " b"] | None = None
    ) -> list[Tokens]:
        return self.layers(pixels, blocks)

    @property
    def level_blocks(self) -> tuple[int, int, int, int]:
        return 0, 0, 0, 0

    @property
    def level_widths(self) -> tuple[int, int, int, int]:
        return self.dim, self.dim, self.dim, self.dim

    def attention(self, pixels: Float[Tensor, "b 3 h w"], block: int = -1) -> Float[Tensor, "b heads t t"]:
        raise UserError("raw pixels have no attention; choose a ViT")


class _Thumbnail(_Pixels):
    """One token: the whole image, resized to a fixed size."""

    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        size = (self.image_size, self.image_size)
        if pixels.shape[-2:] != size:
            pixels = F.interpolate(pixels, size, mode="bilinear", antialias=True)
        patches = pixels.flatten(1)[:, None]
        return Tokens(cls=None, patches=patches, registers=patches[:, :0], grid=(1, 1))


class _Patches(_Pixels):
    """One token per patch."""

    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        patches = F.unfold(pixels, self.patch_size, stride=self.patch_size).mT
        return Tokens(cls=None, patches=patches, registers=patches[:, :0], grid=self.grid_of(pixels))
