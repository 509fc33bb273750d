"""Edits of an image's two factors: what is there (S, concepts) and where (L, the share of each cell per concept).

After every edit the shares of a cell still sum to 1, which is what a decoder of L S was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from asterism.errors import UserError


def drop(where: Float[Tensor, "b r h w"], tokens: Sequence[int]) -> Float[Tensor, "b r h w"]:
    """Maps without these concepts: their share of each cell goes to the others, in proportion to their shares."""
    for token in tokens:
        _check(token, where.shape[1])
    gone = torch.zeros(where.shape[1], dtype=torch.bool, device=where.device)
    gone[list(tokens)] = True
    if gone.all():
        raise UserError(f"all {len(gone)} concepts would be dropped; leave at least one")
    return _fill(torch.zeros_like(where), where, gone)


def move(where: Float[Tensor, "b r h w"], token: int, down: int, right: int) -> Float[Tensor, "b r h w"]:
    """Maps with one concept shifted by whole cells; parts shifted out of the image are lost.

    In each cell the other concepts divide the remainder in proportion to their previous shares.
    """
    _check(token, where.shape[1])
    moved = torch.zeros(where.shape[1], dtype=torch.bool, device=where.device)
    moved[token] = True
    if where.shape[1] == 1:
        raise UserError("the only concept cannot be moved: nothing would be left in its place")
    fixed = torch.zeros_like(where)
    fixed[:, token] = shifted(where[:, token], down, right)
    return _fill(fixed, where, moved)


def shifted(maps: Float[Tensor, "b h w"], down: int, right: int) -> Float[Tensor, "b h w"]:
    """Maps shifted by whole cells and padded with zeros."""
    result = torch.zeros_like(maps)
    rows, columns = maps.shape[1:]
    to_rows, from_rows = _overlap(rows, down)
    to_columns, from_columns = _overlap(columns, right)
    result[:, to_rows, to_columns] = maps[:, from_rows, from_columns]
    return result


def _fill(
    fixed: Float[Tensor, "b r h w"], where: Float[Tensor, "b r h w"], chosen: Bool[Tensor, " r"]
) -> Float[Tensor, "b r h w"]:
    """Maps with the chosen concepts fixed and the others scaled, cell by cell, so that shares sum to 1."""
    others = where.masked_fill(chosen[:, None, None], 0.0)
    total = others.sum(dim=1, keepdim=True)
    # Where the others had no share at all, they divide the remainder equally.
    even = (~chosen).to(where)[:, None, None] / (~chosen).sum()
    shares = torch.where(total > 0, others / total.clamp_min(torch.finfo(where.dtype).tiny), even)
    left = 1 - fixed.sum(dim=1, keepdim=True)
    return fixed + left.clamp_min(0) * shares


def _overlap(length: int, shift: int) -> tuple[slice, slice]:
    """The destination and source slices of a shift."""
    shift = max(-length, min(length, shift))
    if shift >= 0:
        return slice(shift, length), slice(0, length - shift)
    return slice(0, length + shift), slice(-shift, length)


def _check(token: int, count: int) -> None:
    if not 0 <= token < count:
        raise UserError(f"concept {token} does not exist; this model has {count}, numbered from 0 to {count - 1}")
