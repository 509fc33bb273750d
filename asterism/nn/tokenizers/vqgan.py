"""The MaskGIT-VQGAN tokenizer (Chang et al., 2022): 16×16 pixels per code, 1024 codes, convolutions only.

Module names are those of the public weights, so their state dictionary loads unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.nn.tokenizers.base import Tokenizer


class MaskGitVqgan(Tokenizer):
    """The MaskGIT-VQGAN network; the default sizes are those of the public weights."""

    def __init__(
        self,
        width: int = 128,
        multipliers: Sequence[int] = (1, 1, 2, 2, 4),  # channels of each level in units of `width`
        blocks: int = 2,  # residual blocks per level
        channels: int = 256,  # of the latent and of a code
        vocabulary: int = 1024,
    ) -> None:
        super().__init__()
        widths = [width * multiplier for multiplier in multipliers]
        self.encoder = _Encoder(widths, blocks, channels)
        self.decoder = _Decoder(widths, blocks, channels)
        self.quantize = _Codebook(vocabulary, channels)
        self.shape = {
            "width": width,
            "multipliers": list(multipliers),
            "blocks": blocks,
            "channels": channels,
            "vocabulary": vocabulary,
        }
        self.vocabulary = vocabulary
        self.factor = 2 ** (len(widths) - 1)

    def encode(self, images: Float[Tensor, "b 3 H W"]) -> Int[Tensor, "b h w"]:
        self.check_size(images)
        return self.quantize.nearest(self.encoder(images))

    def decode(self, codes: Int[Tensor, "b h w"]) -> Float[Tensor, "b 3 H W"]:
        return self.decoder(self.quantize.look_up(codes)).clamp(0, 1)

    def describe(self) -> dict[str, Any]:
        return {"kind": "maskgit-vqgan", **self.shape}


class _Encoder(nn.Module):
    def __init__(self, widths: Sequence[int], blocks: int, channels: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        before = [widths[0], *widths[:-1]]
        self.down = nn.ModuleList(_Level(i, o, blocks) for i, o in zip(before, widths, strict=True))
        self.mid = nn.Sequential(*(_ResidualBlock(widths[-1], widths[-1]) for _ in range(blocks)))
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], channels, 1)

    def forward(self, images: Float[Tensor, "b 3 H W"]) -> Float[Tensor, "b c h w"]:
        x = self.down[0](self.conv_in(images))
        for level in self.down[1:]:
            x = level(F.avg_pool2d(x, 2))
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class _Decoder(nn.Module):
    def __init__(self, widths: Sequence[int], blocks: int, channels: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(channels, widths[-1], 3, padding=1)
        self.mid = nn.Sequential(*(_ResidualBlock(widths[-1], widths[-1]) for _ in range(blocks)))
        before = [*widths[1:], widths[-1]]
        kinds = [_Level, *[_UpLevel] * (len(widths) - 1)]
        self.up = nn.ModuleList(kind(i, o, blocks) for kind, i, o in zip(kinds, before, widths, strict=True))
        self.norm_out = _norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, latent: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 3 H W"]:
        x = self.mid(self.conv_in(latent))
        for level in reversed(self.up):
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class _Level(nn.Module):
    """Residual blocks of one resolution."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.block = nn.Sequential(*(_ResidualBlock(outputs if i else inputs, outputs) for i in range(blocks)))

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o h w"]:
        return self.block(x)


class _UpLevel(_Level):
    """A level that ends at twice its resolution."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__(inputs, outputs, blocks)
        self.upsample_conv = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o H W"]:
        return self.upsample_conv(F.interpolate(self.block(x), scale_factor=2, mode="nearest"))


class _ResidualBlock(nn.Module):
    """Two normalised convolutions and a shortcut.

    Where the width changes, the shortcut of the public weights reads the branch's output instead of the block's input,
    which is discarded; they were trained this way.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = _norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.nin_shortcut = nn.Conv2d(outputs, outputs, 1, bias=False) if inputs != outputs else None

    def forward(self, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o h w"]:
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.nin_shortcut is None else self.nin_shortcut(y))


class _Codebook(nn.Module):
    def __init__(self, vocabulary: int, channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, channels)

    def nearest(self, latent: Float[Tensor, "b c h w"]) -> Int[Tensor, "b h w"]:
        codes = self.embedding.weight.float()
        rows = latent.float().movedim(1, -1)
        with torch.autocast(latent.device.type, enabled=False):  # |z|² is the same for all codes and left out
            return (codes.square().sum(1) - 2 * rows @ codes.T).argmin(dim=-1)

    def look_up(self, codes: Int[Tensor, "b h w"]) -> Float[Tensor, "b c h w"]:
        return self.embedding(codes).movedim(-1, 1)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)
