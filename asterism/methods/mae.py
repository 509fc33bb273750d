"""MAE: masked autoencoders (He et al., 2022).

Most patches of an image are removed at random. The encoder sees only the rest; a small decoder, discarded after
training, gets their tokens with a mask token in every gap, and predicts the pixels of the removed patches.

    masking ratio          mask_ratio
    encoder, decoder       backbone, decoder
    per-patch normalised   target: "normalised" — each patch minus its mean, over its standard deviation
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.methods.base import Method, MethodConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.decoder import PixelDecoder
from asterism.nn.encoder import Encoder
from asterism.nn.heads import image_tokens
from asterism.nn.initialisation import Init
from asterism.ops import streams
from asterism.ops.host import sent
from asterism.ops.masking import keep_count, mask_from_keep, random_keep, removed_from_keep
from asterism.ops.patches import patchify, standardize, unpatchify
from asterism.ops.precision import at_least_float32
from asterism.ops.random import fold, fold_each
from asterism.ranges import AreaRange, Count, Few, InnerShare, Pixels
from asterism.types import Batch, Losses, Progress, ViewSpec


class MaeConfig(MethodConfig):
    """Settings of MAE. The published backbones have fixed positions: `backbone.positions: sincos`."""

    name: Literal["mae"] = "mae"

    image_size: Pixels | None = None  # pixels; None: the backbone's image size
    scale: AreaRange = (0.2, 1.0)  # area of the crop as a share of the image (section 4)
    mask_ratio: InnerShare = 0.75  # share of patches removed (figure 5)
    target: Literal["normalised", "pixels"] = "normalised"  # section 3, "Reconstruction target"
    decoder_dim: Count = 512  # table 1b
    decoder_depth: Few = 8  # blocks, table 1a
    decoder_heads: Few = 16


class Mae(Method):
    """An encoder of the visible patches and a decoder of all patches."""

    Config: ClassVar[type[MethodConfig]] = MaeConfig
    config: MaeConfig
    published_init: ClassVar[Init] = "xavier"
    shows: ClassVar[str] = "What the encoder sees, and the image reconstructed from these patches alone."

    def __init__(self, config: MaeConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone)
        if not self.backbone.takes_masks:
            raise UserError(
                f"mae needs a backbone that can skip patches; {backbone.name!r} cannot: choose a timm vit_*"
            )
        patch = self.backbone.patch_size
        self.image_size = config.image_size or self.backbone.image_size
        if self.image_size % patch:
            raise UserError(f"method.image_size = {self.image_size} is not a multiple of the patch size {patch}")
        side = self.image_size // patch
        if keep_count(side * side, config.mask_ratio) == 0:
            raise UserError(
                f"method.mask_ratio = {config.mask_ratio} leaves none of {side * side} patches; "
                "lower it, or use smaller patches or larger images"
            )
        self.decoder = PixelDecoder(
            self.backbone.dim,
            (side, side),
            3 * patch * patch,
            config.decoder_dim,
            config.decoder_depth,
            config.decoder_heads,
        )

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return (ViewSpec(size=self.image_size, scale=self.config.scale),)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        return self.losses(batch, self.visible(batch.keys))

    def losses(self, batch: Batch, keep: Int[Tensor, "b m"]) -> Losses:
        """The loss terms, given the visible patches."""
        pixels = batch.views[0].pixels
        tokens = self.backbone(pixels, keep=keep, drop_keys=batch.keys)
        removed = removed_from_keep(keep, len(self.decoder.positions))
        keep, removed = sent(keep, pixels.device), sent(removed, pixels.device)
        predicted = self.decoder(tokens, keep, removed)
        return Losses(
            terms={"reconstruction": self.reconstruction_loss(predicted, pixels, removed)},
            metrics={"prediction_std": predicted.detach().float().std()},
            embeddings=image_tokens([tokens])[0].detach(),
        )

    def visible(self, keys: Int[Tensor, " b"]) -> Int[Tensor, "b m"]:
        """The patches that the encoder sees."""
        return random_keep(fold_each(keys, streams.Mae.MASK), len(self.decoder.positions), self.config.mask_ratio)

    def reconstruction_loss(
        self, predicted: Float[Tensor, "b r p"], pixels: Float[Tensor, "b 3 h w"], removed: Int[Tensor, "b r"]
    ) -> Float[Tensor, ""]:
        """Mean squared error over the pixels of the removed patches, of which all images have the same number."""
        patches = patchify(pixels, self.backbone.patch_size)
        target = patches.gather(1, removed[..., None].expand(-1, -1, patches.shape[-1]))
        if self.config.target == "normalised":
            target, _, _ = standardize(target)
        return F.mse_loss(at_least_float32(predicted), target)

    @torch.no_grad()
    def pictures(self, pixels: Float[Tensor, "b 3 h w"], key: int) -> dict[str, Float[Tensor, "b 3 h w"]]:
        """The encoder's input (removed patches in the mean colour), and the reconstruction from it."""
        keep = sent(self.visible(torch.tensor([fold(key, i) for i in range(len(pixels))])), pixels.device)
        masked, reconstruction = self.reconstruct(pixels, keep)
        return {"visible patches": masked, "reconstruction": reconstruction}

    @torch.no_grad()
    def reconstruct(
        self, pixels: Float[Tensor, "b 3 h w"], keep: Int[Tensor, "b m"]
    ) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b 3 h w"]]:
        """The images with only these patches, and the reconstruction with the visible patches pasted in.

        Normalised predictions are rescaled with the true patch's mean and deviation, which the network never saw.
        """
        tokens = self.backbone(pixels, keep=keep)
        predicted = self.decoder(tokens, keep).float()
        patches = patchify(pixels, self.backbone.patch_size)
        if self.config.target == "normalised":
            _, mean, deviation = standardize(patches)
            predicted = predicted * deviation + mean
        removed = mask_from_keep(keep, patches.shape[1])[..., None]
        seen, made = patches.masked_fill(removed, 0.0), torch.where(removed, predicted, patches)
        masked, reconstruction = (unpatchify(x, tokens.grid, self.backbone.patch_size) for x in (seen, made))
        return masked, reconstruction

    def encoder(self) -> Encoder:
        return Encoder(self.backbone, self.mean, self.std)
