"""An encoder as one function of images that can be recorded: ONNX, TorchScript.

Recording fixes every branch that Python takes. So nothing here depends on the number or the size of the images: sizes
enter as lengths of tensors, and the position table is resampled by matrices. Nothing names a device either.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from asterism.nn.aligned import AlignedEncoder
from asterism.nn.backbone import Backbone
from asterism.nn.encoder import Encoder
from asterism.nn.positions import Grid
from asterism.nn.rope_vit import RopeViT
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
        self.dtype = dtype
        self.image_size = encoder.image_size
        self.patch_size = encoder.patch_size
        self.any_size = _takes_any_size(encoder.backbone)
        self.encoder: Any = copy.deepcopy(encoder).requires_grad_(False).eval().to(dtype)
        if isinstance(encoder, AlignedEncoder):
            recorded: Any = self.encoder
            recorded.alignment.text = nn.Identity()  # images enter the graph, sentences do not
        self.encoder.backbone = _recordable(self.encoder, encoder.backbone)
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


def _takes_any_size(backbone: Backbone) -> bool:
    return type(backbone) is ViT or (isinstance(backbone, RopeViT) and backbone.turns_like_dinov3)


def _recordable(encoder: Encoder, exact: Backbone) -> Any:
    """What takes the place of the encoder's backbone, which is `exact` in the precision of the graph."""
    backbone = encoder.backbone
    if isinstance(backbone, ViT) and isinstance(exact, ViT):
        return _RecordableViT(backbone, exact, None if _takes_any_size(exact) else encoder.image_size)
    if isinstance(backbone, Swin):
        backbone.fix_masks(encoder.image_size)
    return _FixedSize(backbone, encoder.image_size)


class _RecordableViT(nn.Module):
    """A `ViT` in place of the encoder's backbone, for images of any size, or of `size` pixels per side.

    Positions are stored in full precision. Rotary ones other than DINOv3's are computed in advance, for one size.
    """

    prefix: Float[Tensor, "1 p d"]
    table: Float[Tensor, "rows columns d"] | None
    periods: Float[Tensor, " k"] | None

    def __init__(self, vit: ViT, exact: ViT, size: int | None) -> None:
        super().__init__()
        self.vit = vit
        self.size = size
        self.grid: Grid = vit.network.patch_embed.grid_size
        prefix, _ = vit.prefix_and_positions(self.grid)
        _, positions = exact.prefix_and_positions(self.grid)
        turns = isinstance(exact, RopeViT) and exact.turns_like_dinov3
        self.register_buffer("prefix", prefix.detach())
        self.register_buffer("table", None if positions is None else positions.detach().view(*self.grid, -1))
        self.register_buffer("periods", exact.network.rope.periods if turns else None)
        if size is not None:
            side = size // vit.patch_size
            for block, (table,) in enumerate(exact.context((side, side), None)):
                self.register_buffer(f"rotary_{block}", None if table is None else table.detach())

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        vit = self.vit
        if self.size is not None:
            pixels = pixels.expand(-1, 3, self.size, self.size)  # raises for every other size
        cells = F.pixel_unshuffle(pixels, vit.patch_size)  # raises for sides that are not multiples
        embed = vit.network.patch_embed
        patches = embed.norm(F.linear(cells.flatten(2).mT, embed.proj.weight.flatten(1), embed.proj.bias))
        if self.table is not None:
            patches = patches + self._positions(cells).to(patches.dtype)
        x = vit.network.norm_pre(torch.cat([self.prefix.expand(cells.shape[0], -1, -1), patches], dim=1))
        for block, context in zip(vit.network.blocks, self._context(cells), strict=True):
            x = block(x, *context)
        return vit.tokens(vit.network.norm(x), (cells.shape[2], cells.shape[3]))

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return self.vit.pool(tokens)

    def _positions(self, cells: Float[Tensor, "b c rows columns"]) -> Float[Tensor, "n d"]:
        """The table resampled to the grid of these cells; equal to `positions.resample`."""
        assert self.table is not None
        lines, extra = _lines(cells), torch.zeros_like(self.table[0, 0, 0])
        if self.vit.architecture.resampling == "offset":
            own = (lines[0].sum() == self.grid[0]) & (lines[1].sum() == self.grid[1])
            extra = _OFFSET * (~own).float()
        matrix = antialiased_matrix if self.vit.architecture.resampling == "antialiased" else plain_matrix
        rows, columns = (
            matrix(line.cumsum(0) - 0.5, old, old / (line.sum() + extra))
            for line, old in zip(lines, self.grid, strict=True)
        )
        return torch.einsum("ri,ijd,cj->rcd", rows, self.table, columns).flatten(0, 1)

    def _context(self, cells: Float[Tensor, "b c rows columns"]) -> list[tuple[Tensor | None, ...]]:
        """What each block takes besides the tokens: nothing, or sines and cosines."""
        depth = self.vit.depth
        if self.size is not None:
            return [(getattr(self, f"rotary_{block}"),) for block in range(depth)]
        if self.periods is None:
            return [()] * depth
        rows, columns = (2 * (line.cumsum(0) - 0.5) / line.sum() - 1 for line in _lines(cells))
        centres = torch.stack([rows[:, None] + 0 * columns, 0 * rows[:, None] + columns], dim=-1)
        angles = (2 * math.pi * centres[..., None] / self.periods).flatten(2).flatten(0, 1).repeat(1, 2)
        return [(torch.cat([angles.sin(), angles.cos()], dim=-1),)] * depth


def _lines(cells: Float[Tensor, "b c rows columns"]) -> list[Float[Tensor, " _"]]:
    """A one for every row, and one for every column: sizes as tensors, on the device of the cells."""
    return [torch.ones_like(line).float() for line in (cells[0, 0, :, 0], cells[0, 0, 0])]


class _FixedSize(nn.Module):
    """A backbone whose forward pass depends on the size of the images, for one size."""

    def __init__(self, backbone: Backbone, size: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.size = size

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        return self.backbone(pixels.expand(-1, 3, self.size, self.size))  # raises for every other size

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return self.backbone.pool(tokens)
