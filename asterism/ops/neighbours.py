"""Nearest neighbours: the rows of a bank that are most similar to each query.

Both sides are processed in tiles, so the queries × rows similarities are never in memory at once.

>>> bank = torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0]])
>>> nearest(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), bank, k=2)[1].tolist()
[[0, 1], [2, 1]]
>>> most_similar_row(torch.tensor([[9.0, 1.0], [1.0, 2.0]]), bank).tolist()
[1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.host import present

_QUERIES = 1024  # rows per tile
_BANK = 16384  # 1024 × 16384 similarities are 64 MB
_ROWS = 4096  # of a tile of `most_similar_row`, 16 MB
_MEMORY = 2048  # rows per side of a tile of `nearest_rows`, another 16 MB

Searched = Callable[[int], None]  # called with the number of additional rows of the bank searched


def no_progress(rows: int) -> None:
    """Report nothing."""


# ------------------------------------------------------------------------------------------- the k nearest, by cosine


def nearest(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n d"], k: int, searched: Searched = no_progress
) -> tuple[Float[Tensor, "q {k}"], Int[Tensor, "q {k}"]]:
    """Cosine similarity and row of the k nearest rows of the bank, nearest first."""
    assert 1 <= k <= len(bank), f"k = {k} of {len(bank)} rows"
    return nearest_in_parts(queries, bank, [[range(len(bank))]], k, searched)[0]


@torch.no_grad()
def nearest_in_parts(
    queries: Float[Tensor, "q d"],
    bank: Float[Tensor, "n d"],
    parts: Sequence[Sequence[range]],
    k: int,
    searched: Searched = no_progress,
) -> list[tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]]:
    """The result of `nearest` in each part of the bank, given as ascending runs of rows; the whole part if it has
    fewer than k rows. Parts may overlap: every similarity is computed once, whichever parts need it."""
    similarity = [queries.new_full((len(queries), 0), 0.0, dtype=torch.float32) for _ in parts]
    index = [torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device) for _ in parts]
    product = similarity[0].new_empty(min(len(queries), _QUERIES) * min(len(bank), _BANK))  # reused by all chunks
    for start, keys in _chunks(bank, _BANK):
        inside = [_inside(runs, start, start + len(keys)) for runs in parts]
        searched_parts = [part for part, runs in enumerate(inside) if runs]
        merged: dict[int, list[tuple[Tensor, Tensor]]] = {part: [] for part in searched_parts}
        for first, unit in _chunks(queries, _QUERIES):
            candidates = product[: len(unit) * len(keys)].view(len(unit), len(keys))
            torch.mm(unit, keys.T, out=candidates)
            own = slice(first, first + len(unit))
            for part in searched_parts:
                best = (similarity[part][own], index[part][own])
                merged[part].append(_keep_largest(candidates, inside[part], start, best, k))
        for part, found_by_chunk in merged.items():
            similarity[part] = torch.cat([values for values, _ in found_by_chunk])
            index[part] = torch.cat([rows for _, rows in found_by_chunk])
        searched(len(keys))
    return list(zip(similarity, index, strict=True))


def _chunks(rows: Float[Tensor, "n d"], size: int) -> Iterator[tuple[int, Float[Tensor, "m d"]]]:
    """(first row, unit rows in float32) of each chunk."""
    for start in range(0, len(rows), size):
        yield start, F.normalize(rows[start : start + size].float(), dim=1)


def _inside(runs: Sequence[range], start: int, end: int) -> list[range]:
    """The parts of the runs within start … end."""
    cut = (range(max(run.start, start), min(run.stop, end)) for run in runs)
    return [run for run in cut if run]


def _keep_largest(
    candidates: Float[Tensor, "q m"],
    runs: Sequence[range],
    start: int,
    best: tuple[Float[Tensor, "q j"], Int[Tensor, "q j"]],
    k: int,
) -> tuple[Float[Tensor, "q i"], Int[Tensor, "q i"]]:
    """The k largest of the best so far, with their rows, and of runs of candidates, whose first column is row `start`
    of the bank."""
    columns = [candidates[:, run.start - start : run.stop - start] for run in runs]
    new = columns[0] if len(columns) == 1 else torch.cat(columns, 1)
    rows = torch.cat([torch.arange(run.start, run.stop, device=new.device) for run in runs])
    values, known = best
    found, place = new.topk(min(k, new.shape[1]))
    if not known.shape[1]:
        return found, rows[place]
    both, indices = torch.cat([values, found], 1), torch.cat([known, rows[place]], 1)
    values, place = both.topk(min(k, both.shape[1]))
    return values, indices.gather(1, place)


# ------------------------------------------------------------------------------- the nearest, with rows left out


@torch.no_grad()
def nearest_rows(
    memory: Float[Tensor, "n d"], anchors: Int[Tensor, " k"], count: int, excluded: Int[Tensor, " x"] | None = None
) -> tuple[Float[Tensor, "k {count}"], Int[Tensor, "k {count}"]]:
    """Dot product and row of the `count` rows of a memory that are most similar to each anchor, which is a row too.

    excluded: rows that are never found.
    """
    assert count <= len(memory) - (0 if excluded is None else len(excluded)), "fewer rows than requested neighbours"
    if count == 0:  # patch prototypes usually consist of their anchor alone: no search
        return memory.new_zeros(len(anchors), 0), anchors.new_zeros(len(anchors), 0)
    bias = memory.new_zeros(len(memory))
    if excluded is not None:
        bias[excluded] = -torch.inf
    with torch.autocast(memory.device.type, enabled=False):
        found = [_nearest_rows(memory, bias, memory[tile], count) for tile in torch.split(anchors, _MEMORY)]
    return torch.cat([similarity for similarity, _ in found]), torch.cat([index for _, index in found])


def _nearest_rows(
    memory: Float[Tensor, "n d"], bias: Float[Tensor, " n"], queries: Float[Tensor, "q d"], count: int
) -> tuple[Float[Tensor, "q {count}"], Int[Tensor, "q {count}"]]:
    best, places = [], []
    for start in range(0, len(memory), _MEMORY):
        part = slice(start, start + _MEMORY)
        similarity = torch.addmm(bias[part], queries, memory[part].T)
        values, index = similarity.topk(min(count, similarity.shape[1]), dim=1)
        best.append(values)
        places.append(index + start)
    similarity, order = torch.cat(best, dim=1).topk(count, dim=1)
    return similarity, torch.cat(places, dim=1).gather(1, order)


@torch.no_grad()
def most_similar_row(
    queries: Float[Tensor, "q d"],
    rows: Float[Tensor, "n d"],
    *,
    among: Bool[Tensor, " n"] | None = None,
    reciprocal_length: Float[Tensor, " n"] | None = None,
    query_group: Int[Tensor, " q"] | None = None,
    row_group: Int[Tensor, " n"] | None = None,
) -> Int[Tensor, " q"]:
    """The row of largest cosine similarity to each query; −1 where no row may be chosen.

    among: the rows to choose from; all by default.
    reciprocal_length: 1/‖row‖, if known.
    query_group, row_group: a query never chooses a row of its own group.
    """
    chosen = torch.arange(len(rows), device=rows.device)
    if among is not None:
        chosen = chosen[present(among)]
    if reciprocal_length is None:
        reciprocal_length = reciprocal_lengths(rows)
    waits = rows.device.type != "cpu"
    own_group = None
    if query_group is not None and row_group is not None:
        # Few rows belong to a query's group, so only their columns are checked; a device checks all of them.
        own_group = torch.ones_like(row_group, dtype=torch.bool) if waits else torch.isin(row_group, query_group)
    with torch.autocast(rows.device.type, enabled=False):
        unit = F.normalize(queries.float(), dim=1)
        best = unit.new_full((len(unit),), -torch.inf)
        found = torch.full((len(unit),), -1, device=unit.device)
        product = unit.new_empty(min(len(unit), _QUERIES) * min(len(chosen), _ROWS))
        for first in range(0, len(chosen), _ROWS):
            places = chosen[first : first + _ROWS]
            # Half times single precision gives single precision: read, converted and scaled in one pass.
            tile = rows[places] * reciprocal_length[places][:, None]
            for start in range(0, len(unit), _QUERIES):
                part = slice(start, min(start + _QUERIES, len(unit)))
                similarity = product[: (part.stop - start) * len(tile)].view(-1, len(tile))
                torch.mm(unit[part], tile.T, out=similarity)
                if among is not None and waits:
                    similarity.masked_fill_(~among[places], -torch.inf)
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
    columns = present(own_group)
    own = query_group[:, None] == row_group[columns]
    similarity[:, columns] = similarity[:, columns].masked_fill(own, -torch.inf)


# ----------------------------------------------------------------------------- images by their nearest concept


@dataclass(frozen=True)
class Matches:
    """The best images for each query, nearest first, and the matching concept of each."""

    similarity: Float[Tensor, "q k"]  # cosine
    image: Int[Tensor, "q k"]
    token: Int[Tensor, "q k"]


def no_matches(queries: int) -> Matches:
    """An empty result."""
    places = torch.empty(queries, 0, dtype=torch.int64)
    return Matches(torch.empty(queries, 0), places, places)


def nearest_by_concept(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n r d"], k: int, barred: Bool[Tensor, "q n"] | None = None
) -> Matches:
    """The k nearest images of a bank; every image is found once, through its nearest concept.

    barred: images that a query must not find, such as itself.
    """
    unit, keys = F.normalize(queries.float(), dim=1), F.normalize(bank.float(), dim=2)
    similarity, token = torch.einsum("qd,nrd->qnr", unit, keys).max(dim=2)
    if barred is not None:
        similarity = similarity.masked_fill(barred, -torch.inf)
    top, image = similarity.topk(min(k, len(bank)), dim=1)
    return Matches(top, image, token.gather(1, image))


def merge_matches(best: Matches, more: Matches, first: int, k: int) -> Matches:
    """The k best of the matches so far and those in a further part of a bank, whose first image has number `first`."""
    similarity = torch.cat([best.similarity, more.similarity], dim=1)
    image = torch.cat([best.image, more.image + first], dim=1)
    token = torch.cat([best.token, more.token], dim=1)
    top, place = similarity.topk(min(k, similarity.shape[1]), dim=1)
    return Matches(top, image.gather(1, place), token.gather(1, place))
