"""The k largest values of every row, when rows are long and k is small."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GROUP, _WORTH_GROUPS = 16, 4  # columns per group at most; groups per value above which grouping pays off


def largest(
    values: Float[Tensor, "q m"], k: int, above: Float[Tensor, "q 1"] | None = None
) -> tuple[Float[Tensor, "q j"], Int[Tensor, "q j"]]:
    """The k largest of every row and their columns; of those up to `above`, if given, any number may be missing.

    The j largest are in the j groups of columns with the largest maxima. So one long search becomes short ones and a
    maximum, which runs at memory speed. Once the best so far are good, few groups exceed them.
    """
    size = min(_GROUP, values.shape[1] // (_WORTH_GROUPS * k))
    if size < 2:
        return values.topk(k)
    width = values.shape[1] // size
    tail = values[:, size * width :]
    groups = values[:, : size * width].view(len(values), size, width)
    maxima = groups.amax(1)
    j = k if above is None else min(k, int((maxima > above).sum(1).max()))
    column = maxima.topk(j, sorted=False).indices
    among = groups.gather(2, column[:, None].expand(-1, size, -1)).flatten(1)
    left = torch.cat([among, tail], 1)
    again = largest if 0 < 2 * left.shape[1] <= values.shape[1] else torch.topk
    found, place = again(left, min(k, left.shape[1]))
    if not j:
        return found, place + size * width
    inside = place.clamp(max=size * j - 1)
    row = inside // j * width + column.gather(1, inside % j)
    return found, torch.where(place < size * j, row, place - size * j + size * width)
