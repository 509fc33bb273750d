"""The most similar of many rows by cosine: matrix products one tile at a time and a running maximum.

The queries × rows similarities are never held at once. Stored rows may be in half precision: they are normalised to
unit length in single precision, tile by tile, as they are read.

>>> rows = torch.tensor([[4.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
>>> most_similar_row(torch.tensor([[9.0, 1.0], [1.0, 2.0]]), rows).tolist()
[0, 2]
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

_QUERIES = 1024  # per tile; with the number of rows below, a tile holds 16 MB
_ROWS = 4096


@torch.no_grad()
def most_similar_row(
    queries: Float[Tensor, "q d"],
    rows: Float[Tensor, "n d"],
    *,
    among: Int[Tensor, " m"] | None = None,
    reciprocal_length: Float[Tensor, " n"] | None = None,
    query_group: Int[Tensor, " q"] | None = None,
    row_group: Int[Tensor, " n"] | None = None,
) -> Int[Tensor, " q"]:
    """The row of largest cosine similarity to each query; −1 where no row may be chosen.

    among: indices of the rows to choose from; all rows by default.
    reciprocal_length: 1/‖row‖, if known.
    query_group, row_group: a query never chooses a row of its own group.
    """
    if among is None:
        among = torch.arange(len(rows), device=rows.device)
    if reciprocal_length is None:
        reciprocal_length = reciprocal_lengths(rows)
    # Few rows belong to a query's group, so only their columns are checked.
    own_group = None if query_group is None or row_group is None else torch.isin(row_group, query_group)
    with torch.autocast(rows.device.type, enabled=False):
        unit = F.normalize(queries.float(), dim=1)
        best = unit.new_full((len(unit),), -torch.inf)
        found = torch.full((len(unit),), -1, device=unit.device)
        product = unit.new_empty(min(len(unit), _QUERIES) * min(len(among), _ROWS))
        for first in range(0, len(among), _ROWS):
            places = among[first : first + _ROWS]
            # Half times single precision gives single precision: read, converted and scaled in one pass.
            tile = rows[places] * reciprocal_length[places][:, None]
            for start in range(0, len(unit), _QUERIES):
                part = slice(start, min(start + _QUERIES, len(unit)))
                similarity = product[: (part.stop - start) * len(tile)].view(-1, len(tile))
                torch.mm(unit[part], tile.T, out=similarity)
                if own_group is not None and query_group is not None and row_group is not None:
                    _forbid_own_group(similarity, own_group[places], query_group[part], row_group[places])
                value, column = similarity.max(dim=1)
                better = value > best[part]
                best[part] = torch.where(better, value, best[part])
                found[part] = torch.where(better, places[column], found[part])
    return found


def reciprocal_lengths(rows: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
    """1/‖row‖ in single precision."""
    return 1 / rows.float().norm(dim=-1).clamp_min(1e-12)


def _forbid_own_group(
    similarity: Float[Tensor, "q m"],
    own_group: Bool[Tensor, " m"],
    query_group: Int[Tensor, " q"],
    row_group: Int[Tensor, " m"],
) -> None:
    """Modify in place; `own_group` are the rows that belong to the group of any query."""
    columns = own_group.nonzero()[:, 0]
    if len(columns):
        own = query_group[:, None] == row_group[columns]
        similarity[:, columns] = similarity[:, columns].masked_fill(own, -torch.inf)
