"""VQ: a tokenizer for your own images (van den Oord et al., 2017; factorised unit codes as in Yu et al., 2022).

Every patch of an image is quantised to the nearest of K codes, and a light decoder reconstructs the image from them.
It serves other methods as a frozen target: `method.reconstruction.tokenizer=runs/vq` in STELLAR.

    z_e(x), z_q(x)   latents, unit vectors, and the codes nearest to them
    e_k              codebook.codes, running means of their latents; no gradient
    sg               detach; straight_through passes the decoder's gradient on to z_e unchanged
    β                commitment
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.methods.base import Method, MethodConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.encoder import Encoder
from asterism.nn.reconstruction import ConceptDecoder
from asterism.nn.tokenizers.patches import PatchCodes, PatchTokenizer
from asterism.nn.tokenizers.saved import FILE_NAME, save_tokenizer
from asterism.ops import streams
from asterism.ops.normalise import denormalise, normalise
from asterism.ops.random import fold_each
from asterism.ranges import AreaRange, Count, CountFromTwo, Few, NonNegative, Pixels, ShareBelowOne
from asterism.types import Batch, Losses, Progress, ViewSpec


class VqConfig(MethodConfig):
    """Settings of the tokenizer; the size of a code's patch is the backbone's."""

    name: Literal["vq"] = "vq"

    image_size: Pixels | None = None  # pixels; None: the backbone's image size
    scale: AreaRange = (0.36, 1.0)  # area of the crop as a share of the image
    vocabulary: CountFromTwo = 1024  # K
    code_dim: CountFromTwo = 16  # few dimensions use more of the codes
    commitment: NonNegative = 0.25  # β
    momentum: ShareBelowOne = 0.99  # of the running means, per step
    revive_below: NonNegative = 0.05  # a code with fewer latents per step, on average, is replaced
    decoder_dim: Count = 256
    decoder_depth: Few = 4
    decoder_heads: Few = 4


class Vq(Method):
    """The tokenizer in training."""

    Config: ClassVar[type[MethodConfig]] = VqConfig
    config: VqConfig
    shows: ClassVar[str] = "The image reconstructed from its codes."

    def __init__(self, config: VqConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone)
        decoder = ConceptDecoder(config.code_dim, config.decoder_dim, config.decoder_depth, config.decoder_heads)
        self.codes = PatchCodes(self.backbone.dim, self.backbone.patch_size, config.vocabulary, decoder)

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        return (ViewSpec(size=self.config.image_size or self.backbone.image_size, scale=self.config.scale),)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        pixels = batch.views[0].pixels
        tokens = self.backbone(pixels, drop_keys=batch.keys)
        z_e = self.codes.latents(tokens.patches)
        k = self.codes.codebook.nearest(z_e)
        z_q = self.codes.codebook.codes[k]
        self._remember(z_e.detach(), k, batch.keys)
        straight_through = z_e + (z_q - z_e).detach()
        image = denormalise(pixels, self.mean, self.std)
        reconstruction, psnr = self.codes.reconstruction.loss(straight_through, tokens.grid, image)
        return Losses(
            terms={"reconstruction": reconstruction, "commitment": F.mse_loss(z_e, z_q)},
            weights={"commitment": self.config.commitment},
            metrics={"psnr": psnr, "codes_in_use": self._perplexity()},
            embeddings=tokens.patches.detach().float().mean(dim=1),
        )

    def after_update(self, progress: Progress) -> None:
        self.codes.codebook.update(self.config.momentum, self.config.revive_below)

    @torch.no_grad()
    def pictures(self, pixels: Float[Tensor, "b 3 h w"], key: int) -> dict[str, Float[Tensor, "b 3 h w"]]:
        """The images reconstructed from their codes."""
        tokenizer = self.tokenizer()
        made = tokenizer.decode(tokenizer.encode(denormalise(pixels, self.mean, self.std)))
        return {"reconstruction": normalise(made, self.mean, self.std)}

    def tokenizer(self) -> PatchTokenizer:
        return PatchTokenizer(self.backbone, self.codes, self.mean, self.std)

    def encoder(self) -> Encoder:
        return TokenizingEncoder(self.tokenizer())

    def _remember(self, latents: Float[Tensor, "b n c"], chosen: Int[Tensor, "b n"], keys: Int[Tensor, " b"]) -> None:
        place = torch.arange(latents.shape[1], device=keys.device)
        each = fold_each((keys[:, None] + place).flatten(), streams.Vq.SPARE)
        self.codes.codebook.accumulate(latents.flatten(0, 1), chosen.flatten(), each)

    @torch.no_grad()
    def _perplexity(self) -> Float[Tensor, ""]:
        """The perplexity of the code usage: the effective number of codes in use."""
        share = self.codes.codebook.count / self.codes.codebook.count.sum()
        return torch.exp(-(share * share.clamp_min(1e-30).log()).sum())


class TokenizingEncoder(Encoder):
    """The tokenizer's backbone; `save` also writes the tokenizer next to it."""

    def __init__(self, tokenizer: PatchTokenizer) -> None:
        super().__init__(tokenizer.backbone, tokenizer.mean, tokenizer.std)
        self.tokenizer = tokenizer

    def save_parts(self, path: Path) -> None:
        save_tokenizer(self.tokenizer, path.with_name(FILE_NAME))
