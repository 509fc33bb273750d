"""An encoder as one function of images that can be recorded: ONNX, TorchScript.

Recording fixes every branch that Python takes. So nothing here depends on the number or the size of the images: sizes
enter as lengths of tensors, and the position table is resampled by matrices. Nothing names a device either.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from asterism.nn.backbone import Backbone
from asterism.nn.encoder import Encoder
from asterism.nn.positions import Grid, Resampling
from asterism.nn.swin import Swin
from asterism.nn.vit import ViT
from asterism.ops.bicubic import antialiased_matrix, plain_matrix
from asterism.types import Tokens

_OFFSET = 0.1  # see nn/positions.py


class Graph(nn.Module):
    """Images in [0, 1] to named outputs, as `Encoder.encode` computes them for a batch.

    The images are normalised inside. Inputs and outputs are float32 in every precision of the network.
    """

    mean: Float[Tensor, "3 1 1"]
    std: Float[Tensor, "3 1 1"]

    def __init__(self, encoder: Encoder, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        copied = copy.deepcopy(encoder).requires_grad_(False).eval()
        self.dtype = dtype
        self.any_size = type(encoder.backbone) is ViT
        self.image_size = encoder.image_size
        self.patch_size = encoder.patch_size
        copied.backbone = _recordable(copied)
        self.encoder = copied.to(dtype)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(encoder, name))[:, None, None])

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        pixels = ((images - self.mean) / self.std).to(self.dtype)
        return {name: output.float() for name, output in self.encoder.named_outputs(pixels).items()}

    def example(self) -> Float[Tensor, "2 3 h w"]:
        """Images to record with: of a size that no part of the network was made for, if any size is possible."""
        extra = (2, 3) if self.any_size else (0, 0)
        height, width = (self.image_size + patches * self.patch_size for patches in extra)
        return torch.full((2, 3, height, width), 0.5)


@contextmanager
def recording() -> Iterator[None]:
    """No gradients, and no checks of shapes: they compare sizes, and comparisons would be recorded."""
    disabled = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with torch.no_grad():
            yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", disabled)


def _recordable(encoder: Encoder) -> Any:
    backbone = encoder.backbone
    if type(backbone) is ViT:
        return _AnySizeViT(backbone)
    if isinstance(backbone, Swin):
        backbone.fix_masks(encoder.image_size)
    return _FixedSize(backbone, encoder.image_size)


class _AnySizeViT(nn.Module):
    """A `ViT` for images of any size, in place of the encoder's backbone."""

    prefix: Float[Tensor, "1 p d"]
    table: Float[Tensor, "rows columns d"] | None

    def __init__(self, vit: ViT) -> None:
        super().__init__()
        self.network = vit.network
        self.patch_size = vit.patch_size
        self.has_cls = vit.has_cls
        self.registers = vit.registers
        self.resampling: Resampling = vit.architecture.resampling
        self.grid: Grid = vit.network.patch_embed.grid_size
        prefix, positions = vit.prefix_and_positions(self.grid)
        self.register_buffer("prefix", prefix.detach())
        self.register_buffer("table", None if positions is None else positions.detach().view(*self.grid, -1))

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        cells = F.pixel_unshuffle(pixels, self.patch_size)  # raises for sides that are not multiples
        embed = self.network.patch_embed
        patches = F.linear(cells.flatten(2).mT, embed.proj.weight.flatten(1), embed.proj.bias)
        patches = embed.norm(patches)
        if self.table is not None:
            patches = patches + self._positions(cells).to(patches.dtype)
        x = torch.cat([self.prefix.expand(cells.shape[0], -1, -1), patches], dim=1)
        x = self.network.norm_pre(x)
        for block in self.network.blocks:
            x = block(x)
        x = self.network.norm(x)
        first = int(self.has_cls)
        return Tokens(
            cls=x[:, 0] if self.has_cls else None,
            registers=x[:, first : first + self.registers],
            patches=x[:, first + self.registers :],
            grid=(cells.shape[2], cells.shape[3]),
        )

    def _positions(self, cells: Float[Tensor, "b c rows columns"]) -> Float[Tensor, "n d"]:
        """The table resampled to the grid of these cells; equal to `positions.resample`."""
        assert self.table is not None
        lines = [torch.ones_like(line).float() for line in (cells[0, 0, :, 0], cells[0, 0, 0])]
        extra = torch.zeros_like(lines[0].sum())
        if self.resampling == "offset":
            own = (lines[0].sum() == self.grid[0]) & (lines[1].sum() == self.grid[1])
            extra = _OFFSET * (~own).float()
        matrix = antialiased_matrix if self.resampling == "antialiased" else plain_matrix
        rows, columns = (
            matrix(line.cumsum(0) - 0.5, old, old / (line.sum() + extra))
            for line, old in zip(lines, self.grid, strict=True)
        )
        return torch.einsum("ri,ijd,cj->rcd", rows, self.table.float(), columns).flatten(0, 1)


class _FixedSize(nn.Module):
    """A backbone whose forward pass depends on the size of the images, for one size."""

    def __init__(self, backbone: Backbone, size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.size = size

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        return self.backbone(pixels.expand(-1, 3, self.size, self.size))  # raises for every other size
