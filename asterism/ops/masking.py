"""Which patches a network sees. Masks are drawn from random keys of the images, see `ops.random`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.config import Config
from asterism.ops.host import sent
from asterism.ops.random import uniform
from asterism.ranges import PositiveRange, Share


def keep_count(patches: int, ratio: float) -> int:
    """The number of `patches` that remain when the share `ratio` is masked: truncated, in double precision."""
    return int(patches * (1 - ratio))


def keep_from_noise(noise: Float[Tensor, "b n"], ratio: float) -> Int[Tensor, "b m"]:
    """The patches with the smallest noise, in ascending order of noise; the share `ratio` is masked."""
    order = noise.argsort(dim=1, stable=True)  # equal noise: the earlier patch, on every device
    return order[:, : keep_count(noise.shape[1], ratio)]


def random_keep(keys: Int[Tensor, " b"], patches: int, ratio: float) -> Int[Tensor, "b m"]:
    """Patches to keep, drawn uniformly for each image from its key.

    >>> keep = random_keep(torch.arange(2), patches=16, ratio=0.75)
    >>> mask_from_keep(keep, patches=16).sum(dim=1).tolist()  # removed patches
    [12, 12]
    """
    return keep_from_noise(uniform(keys, patches), ratio)


def rows_at(values: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "r d"]:
    """`values[mask]`, for a mask that is on the host: nobody has to wait for the number of rows."""
    return values.flatten(0, 1)[sent(mask.flatten().nonzero()[:, 0], values.device)]


def mask_from_keep(keep: Int[Tensor, "b m"], patches: int) -> Bool[Tensor, "b {patches}"]:
    """True where a patch was removed."""
    mask = torch.ones(len(keep), patches, dtype=torch.bool, device=keep.device)
    return mask.scatter_(1, keep, False)


def removed_from_keep(keep: Int[Tensor, "b m"], patches: int) -> Int[Tensor, "b r"]:
    """The removed patches of every image, ascending.

    >>> removed_from_keep(torch.tensor([[3, 1]]), patches=5)
    tensor([[0, 2, 4]])
    """
    order = mask_from_keep(keep, patches).byte().argsort(dim=1, descending=True, stable=True)
    return order[:, : patches - keep.shape[1]]


class FocusConfig(Config):
    """Masks that are more likely to leave neighbouring patches visible."""

    probability: Share = 0.5
    sigma: PositiveRange = (0.1, 0.5)  # width of the Gaussian as a share of the grid's longer side


@dataclass(frozen=True)
class Focus:
    """A Gaussian around a cell of the patch grid, inside which patches are kept more often."""

    centre: Int[Tensor, "b 2"]  # row, column
    sigma: Float[Tensor, " b"]  # width of the Gaussian as a share of the grid's longer side
    active: Bool[Tensor, " b"]  # images whose noise is changed at all


def draw_focus(keys: Int[Tensor, " b"], grid: tuple[int, int], config: FocusConfig) -> Focus:
    """One focus per image: a uniform cell and a uniform width, active with the given probability."""
    row, column, width, switch = uniform(keys, 4).unbind(dim=1)
    centre = torch.stack([row * grid[0], column * grid[1]], dim=1).to(torch.int64)
    narrow, wide = config.sigma
    return Focus(centre, narrow + (wide - narrow) * width, switch < config.probability)


def focus_noise(noise: Float[Tensor, "b n"], grid: tuple[int, int], focus: Focus) -> Float[Tensor, "b n"]:
    """Noise minus exp(−D² / 2(σ g)²), D the distance to the focus in patches and g the longer side of the grid."""
    rows = torch.arange(grid[0], device=noise.device)[None, :, None] - focus.centre[:, 0, None, None]
    columns = torch.arange(grid[1], device=noise.device)[None, None, :] - focus.centre[:, 1, None, None]
    spread = 2 * (focus.sigma * max(grid)) ** 2
    bell = torch.exp(-(rows**2 + columns**2) / spread[:, None, None]).flatten(1)
    return noise - bell * focus.active[:, None]


@dataclass(frozen=True)
class MaskDraw:
    """The random numbers behind one view's masks; with the ratio they determine which patches stay."""

    noise: Float[Tensor, "b n"]
    focus: Focus | None

    def keep(self, grid: tuple[int, int], ratio: float) -> Int[Tensor, "b m"]:
        """The patches with the smallest noise, after the focus has lowered it around its centre."""
        noise = self.noise if self.focus is None else focus_noise(self.noise, grid, self.focus)
        return keep_from_noise(noise, ratio)
