"""Reconstruction from concepts (STELLAR, equation 3): a light decoder of V = L S to pixels or a tokenizer's codes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.config import Config
from asterism.errors import UserError
from asterism.nn.positions import Grid
from asterism.nn.tokenizers.base import Tokenizer
from asterism.ranges import Count, Few, NonNegative, Pixels, Positive


class ReconstructionConfig(Config):
    """The decoder (section 3.1) and its target."""

    target: Literal["pixels", "codes"] = "pixels"
    tokenizer: str | None = None  # for codes: a `vq` run, or the file of a MaskGIT-VQGAN
    image_size: Pixels | None = None  # pixels per side of the tokenizer's input; None: the view's
    weight: NonNegative | Literal["auto"] = "auto"  # auto: 10 for pixels, 0.05 for codes
    decoder_dim: Count = 512
    decoder_depth: Few = 6  # blocks
    decoder_heads: Few = 8
    decoder_mlp_ratio: Positive = 4.0  # hidden width of a block's MLP over decoder_dim

    @model_validator(mode="after")
    def _tokenizer_for_codes(self) -> ReconstructionConfig:
        if self.target == "codes" and self.tokenizer is None:
            raise ValueError(
                "target: codes needs a tokenizer: train one on your images with `asterism pretrain vq`, or give the "
                "file of the public MaskGIT-VQGAN"
            )
        if self.target == "pixels" and self.tokenizer is not None:
            raise ValueError("a tokenizer is given, but target: pixels does not use it; set target: codes")
        if self.target == "pixels" and self.image_size is not None:
            raise ValueError("image_size is that of a tokenizer's input, and target: pixels has none; leave it out")
        return self

    @property
    def resolved_weight(self) -> float:
        published = 10.0 if self.target == "pixels" else 0.05
        return published if self.weight == "auto" else self.weight


class FourierPositions(nn.Module):
    """Fixed random Fourier features: sines and cosines along random directions in the image."""

    matrix: Float[Tensor, "2 f"]

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(2, dim // 2))

    def forward(self, grid: Grid) -> Float[Tensor, "n d"]:
        """Features of the cells' centres in raster order; coordinates run from −1 to 1, column first."""
        rows, columns = ((torch.arange(n, device=self.matrix.device) + 0.5) / n * 2 - 1 for n in grid)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        with torch.autocast(self.matrix.device.type, enabled=False):
            angles = 2 * math.pi * torch.stack([x, y], dim=-1).flatten(0, 1) @ self.matrix
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class ConceptDecoder(nn.Module):
    """A narrow transformer over the patches of V. It has no class token: all information comes from the concepts."""

    def __init__(self, in_dim: int, dim: int = 512, depth: int = 6, heads: int = 8, mlp_ratio: float = 4.0) -> None:
        from timm.models.vision_transformer import Block  # slow to import, and configurations are read without it

        super().__init__()
        if dim % heads or dim % 2:
            raise UserError(f"a decoder of width {dim} cannot have {heads} heads; choose an even multiple of the heads")
        self.shape = {"in_dim": in_dim, "dim": dim, "depth": depth, "heads": heads, "mlp_ratio": mlp_ratio}
        self.dim = dim
        norm: Any = partial(nn.LayerNorm, eps=1e-12)
        self.embed = nn.Linear(in_dim, dim)
        self.positions = FourierPositions(dim)
        self.blocks = nn.Sequential(
            *(Block(dim, heads, mlp_ratio, qkv_bias=True, norm_layer=norm) for _ in range(depth))
        )
        self.norm = norm(dim)

    def forward(self, mixed: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b n e"]:
        return self.norm(self.blocks(self.embed(mixed) + self.positions(grid)))


class Reconstruction(nn.Module, ABC):
    """A decoder with a head and its target."""

    decoder: ConceptDecoder
    metric: str  # name of the measure that `loss` returns

    @abstractmethod
    def loss(
        self, mixed: Float[Tensor, "b n d"], grid: Grid, images: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The loss against images in [0, 1], and a detached quality measure for monitoring."""

    @abstractmethod
    def forward(self, mixed: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b 3 H W"]:
        """Images in [0, 1]."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values from which `rebuild_reconstruction` rebuilds this module, without its weights."""


class PixelReconstruction(Reconstruction):
    """Predicts all pixels of a patch at once; mean squared error on patches that are not normalised."""

    metric = "psnr"  # dB

    def __init__(self, decoder: ConceptDecoder, patch_size: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.patch_size = patch_size
        self.head = nn.ConvTranspose2d(decoder.dim, 3, patch_size, patch_size)
        # Differs from the published code: it starts at mid-grey; the default start is noise as strong as the images.
        nn.init.normal_(self.head.weight, std=0.1 * decoder.dim**-0.5)
        assert self.head.bias is not None
        nn.init.constant_(self.head.bias, 0.5)

    def predict(self, mixed: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b 3 H W"]:
        """The head's raw pixels, which may be outside [0, 1]."""
        return self.head(self.decoder(mixed, grid).mT.unflatten(2, grid))

    def loss(
        self, mixed: Float[Tensor, "b n d"], grid: Grid, images: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        error = F.mse_loss(self.predict(mixed, grid).float(), images)
        return error, -10 * error.detach().log10()

    def forward(self, mixed: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b 3 H W"]:
        return self.predict(mixed, grid).float().clamp(0, 1)

    def describe(self) -> dict[str, Any]:
        return {"target": "pixels", "decoder": self.decoder.shape, "patch_size": self.patch_size}


class CodeReconstruction(Reconstruction):
    """Predicts a frozen tokenizer's code of every cell; cross-entropy over its vocabulary."""

    metric = "code_accuracy"

    def __init__(
        self,
        decoder: ConceptDecoder,
        vocabulary: int,
        tokenizer: Tokenizer | None = None,  # None: predicts codes, but cannot encode or decode images
        image_size: int | None = None,  # pixels per side of the tokenizer's input; None: the images' own size
    ) -> None:
        super().__init__()
        if tokenizer is not None and tokenizer.vocabulary != vocabulary:
            raise UserError(f"the tokenizer has {tokenizer.vocabulary} codes, the decoder predicts {vocabulary}")
        self.decoder = decoder
        self.head = nn.Linear(decoder.dim, vocabulary)
        self.tokenizer = None if tokenizer is None else tokenizer.requires_grad_(False).eval()
        self.image_size = image_size

    def train(self, mode: bool = True) -> CodeReconstruction:
        """The tokenizer stays in evaluation mode."""
        super().train(mode)
        if self.tokenizer is not None:
            self.tokenizer.eval()
        return self

    def predict(self, mixed: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b n k"]:
        """Logits over the vocabulary."""
        return self.head(self.decoder(mixed, grid))

    @torch.no_grad()
    def codes(self, images: Float[Tensor, "b 3 h w"], grid: Grid) -> Int[Tensor, "b n"]:
        """The codes to predict, computed in full precision: rounding would change some of them."""
        images = images.float()
        if self.image_size is not None and images.shape[-1] != self.image_size:
            # Plain bicubic and not clamped, as in the published code: another filter would give other codes.
            images = F.interpolate(images, size=(self.image_size, self.image_size), mode="bicubic")
        with torch.autocast(images.device.type, enabled=False):
            codes = self._frozen().encode(images)
        if codes.shape[1:] != grid:
            raise grid_mismatch(grid, (codes.shape[1], codes.shape[2]), self._frozen().factor)
        return codes.flatten(1)

    def loss(
        self, mixed: Float[Tensor, "b n d"], grid: Grid, images: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        codes, logits = self.codes(images, grid), self.predict(mixed, grid).float()
        accuracy = (logits.detach().argmax(dim=-1) == codes).float().mean()
        return F.cross_entropy(logits.flatten(0, 1), codes.flatten()), accuracy

    def forward(self, mixed: Float[Tensor, "b n d"], grid: Grid) -> Float[Tensor, "b 3 H W"]:
        codes = self.predict(mixed, grid).argmax(dim=-1)
        return self._frozen().decode(codes.view(-1, *grid))

    def describe(self) -> dict[str, Any]:
        tokenizer = None if self.tokenizer is None else self.tokenizer.describe()
        shape = {"vocabulary": self.head.out_features, "image_size": self.image_size}
        return {"target": "codes", "decoder": self.decoder.shape, "tokenizer": tokenizer, **shape}

    def _frozen(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError(
                "these weights predict the codes of a tokenizer that did not come with them; give its file: "
                "--tokenizer FILE, or asterism.load(..., tokenizer=FILE)"
            )
        return self.tokenizer


def grid_mismatch(patches: Grid, codes: Grid, factor: int) -> UserError:
    """The error for an encoder and a tokenizer that divide an image differently."""
    fix = f"method.reconstruction.image_size={patches[0] * factor}, the size of the tokenizer's input"
    return UserError(
        f"the encoder has {patches[0]}×{patches[1]} patches, but the tokenizer makes {codes[0]}×{codes[1]} codes "
        f"(one per {factor}×{factor} pixels); set {fix}"
    )
