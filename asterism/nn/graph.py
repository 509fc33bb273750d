"""An encoder as one function of images that can be recorded for ONNX.

Recording fixes every branch that Python takes. So nothing here depends on the number or the size of the images: sizes
enter as lengths of tensors, and the position table is resampled by matrices. Nothing names a device either.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

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

    The images are normalised inside. Inputs and outputs are float32 in every precision of the network; labels are
    integers.
    """

    mean: Float[Tensor, "3 1 1"]
    std: Float[Tensor, "3 1 1"]

    def __init__(self, encoder: Encoder, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        self.image_size = encoder.image_size
        self.patch_size = encoder.patch_size
        self.canvas = encoder.canvas  # height and width up to which images may have any size; None: see `any_size`
        self.any_size = self.canvas is None and _takes_any_size(encoder.backbone)  # in multiples of the patch size
        self.encoder: Any = copy.deepcopy(encoder).requires_grad_(False).eval().to(dtype)
        self.encoder.keep_named_outputs()
        self.encoder.set_backbone(_recordable(self.encoder.backbone, encoder.backbone, self.only_size))
        if self.any_size:
            _replace_pools(self.encoder)
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(encoder, name))[:, None, None])

    def forward(self, images: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        pixels = ((images - self.mean) / self.std).to(self.dtype)
        if self.canvas is None and not self.any_size:
            pixels = pixels.expand(-1, 3, *self.only_size)  # raises for every other size
        outputs = self.encoder.named_outputs(pixels).items()
        return {name: output.float() if output.is_floating_point() else output for name, output in outputs}

    @property
    def only_size(self) -> Grid:
        """Height and width that the network works at, unless it takes any."""
        return self.canvas or (self.image_size, self.image_size)

    def example(self) -> Float[Tensor, "2 3 h w"]:
        """Images to record with: of a size that no part of the network was made for, if others are possible."""
        height, width = self.only_size
        if self.canvas is not None:
            height, width = max(1, height - 7), max(1, width - 11)
        elif self.any_size:
            height, width = height + 2 * self.patch_size, width + 3 * self.patch_size
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


def _recordable(backbone: Backbone, exact: Backbone, only_size: Grid) -> Backbone:
    """What takes the place of a backbone, which is `exact` in the precision of the graph.

    only_size: height and width of the images, for networks that take no others.
    """
    if isinstance(backbone, ViT) and isinstance(exact, ViT):
        return _RecordableViT(backbone, exact, None if _takes_any_size(exact) else only_size)
    if isinstance(backbone, Swin):
        backbone.fix_masks(only_size)
    return backbone


def _replace_pools(module: nn.Module) -> None:
    """Recorded, torch's adaptive pooling is for one size of its input."""
    for name, child in module.named_children():
        if isinstance(child, nn.AdaptiveAvgPool2d):
            setattr(module, name, _RecordablePool(child))
        else:
            _replace_pools(child)


class _RecordablePool(nn.Module):
    """`AdaptiveAvgPool2d` to a square, by matrices: cell i is the mean of floor(i·n/k) … ceil((i + 1)·n/k) of n."""

    ends: Float[Tensor, " cells"]

    def __init__(self, pool: nn.AdaptiveAvgPool2d) -> None:
        super().__init__()
        assert isinstance(pool.output_size, int)
        self.cells = pool.output_size
        self.register_buffer("ends", torch.arange(1, pool.output_size + 1, dtype=torch.float32))

    def forward(self, maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c cells cells"]:
        rows, columns = (self._means(line).to(maps.dtype) for line in _lines(maps))
        return rows @ maps @ columns.mT

    def _means(self, line: Float[Tensor, " n"]) -> Float[Tensor, "cells n"]:
        count, ends = line.sum(), self.ends.float()[:, None]
        first, last = ((ends - 1) * count / self.cells).floor(), (ends * count / self.cells).ceil()
        place = line.cumsum(0) - 1
        inside = ((place >= first) & (place < last)).float()
        return inside / inside.sum(dim=1, keepdim=True)


class _RecordableViT(Backbone):
    """A `ViT` in place of the encoder's backbone, for images of any size, or of one height and width.

    Positions are stored in full precision. Rotary ones other than DINOv3's are computed in advance, for one size.
    """

    takes_masks = False
    drop_path, checkpointing = 0.0, False  # which only training has

    prefix: Float[Tensor, "1 p d"]
    table: Float[Tensor, "rows columns d"] | None
    periods: Float[Tensor, " k"] | None

    def __init__(self, vit: ViT, exact: ViT, size: Grid | None) -> None:
        super().__init__()
        self.vit = vit
        self.size = size
        for name in ("architecture", "dim", "patch_size", "image_size", "depth", "has_cls", "registers"):
            setattr(self, name, getattr(vit, name))
        self.grid: Grid = vit.network.patch_embed.grid_size
        prefix, _ = vit.prefix_and_positions(self.grid)
        _, positions = exact.prefix_and_positions(self.grid)
        turns = isinstance(exact, RopeViT) and exact.turns_like_dinov3
        self.register_buffer("prefix", prefix.detach())
        self.register_buffer("table", None if positions is None else positions.detach().view(*self.grid, -1))
        self.register_buffer("periods", exact.network.rope.periods if turns else None)
        if size is not None:
            rows, columns = (side // vit.patch_size for side in size)
            for block, (table,) in enumerate(exact.context((rows, columns), None)):
                self.register_buffer(f"rotary_{block}", None if table is None else table.detach())

    @property
    def network(self) -> Any:  # type: ignore[override]
        return self.vit.network

    def forward(self, pixels: Float[Tensor, "b 3 h w"], **options: Any) -> Tokens:
        return self.layers(pixels, [-1])[0]

    def embedded(self, pixels: Float[Tensor, "b 3 h w"]) -> Tokens:
        cells = self._cells(pixels)
        return self._tokens(self._embed(cells), cells)

    def layers(self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int]) -> list[Tokens]:
        cells = self._cells(pixels)
        return [self._tokens(self.vit.network.norm(x), cells) for x in self._outputs(cells, blocks)]

    def block_outputs(
        self, pixels: Float[Tensor, "b 3 h w"], blocks: Sequence[int], *, drop_keys: Int[Tensor, " b"] | None = None
    ) -> list[Tokens]:
        cells = self._cells(pixels)
        return [self._tokens(x, cells) for x in self._outputs(cells, blocks)]

    def pool(self, tokens: Tokens) -> Float[Tensor, "b d"]:
        return self.vit.pool(tokens)

    @property
    def level_blocks(self) -> tuple[int, int, int, int]:
        return self.vit.level_blocks

    @property
    def level_widths(self) -> tuple[int, int, int, int]:
        return self.vit.level_widths

    def attention(self, pixels: Float[Tensor, "b 3 h w"], block: int = -1) -> Float[Tensor, "b heads t t"]:
        return self.vit.attention(pixels, block)

    def _cells(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c rows columns"]:
        return F.pixel_unshuffle(pixels, self.patch_size)  # raises for sides that are not multiples

    def _tokens(self, x: Float[Tensor, "b t d"], cells: Float[Tensor, "b c rows columns"]) -> Tokens:
        return self.vit.tokens(x, (cells.shape[2], cells.shape[3]))

    def _embed(self, cells: Float[Tensor, "b c rows columns"]) -> Float[Tensor, "b t d"]:
        embed = self.vit.network.patch_embed
        patches = embed.norm(F.linear(cells.flatten(2).mT, embed.proj.weight.flatten(1), embed.proj.bias))
        if self.table is not None:
            patches = patches + self._positions(cells).to(patches.dtype)
        return self.vit.network.norm_pre(torch.cat([self.prefix.expand(cells.shape[0], -1, -1), patches], dim=1))

    def _outputs(self, cells: Float[Tensor, "b c rows columns"], blocks: Sequence[int]) -> list[Tensor]:
        wanted = [self.block_index(block) for block in blocks]
        x, outputs, context = self._embed(cells), {}, self._context(cells)
        for index, block in enumerate(self.vit.network.blocks[: max(wanted, default=-1) + 1]):
            x = block(x, *context[index])
            outputs[index] = x
        return [outputs[index] for index in wanted]

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
