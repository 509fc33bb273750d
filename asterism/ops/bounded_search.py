"""Exact nearest neighbours in a large bank, with most similarities bounded instead of computed.

Features of images have few strong directions. Let P be an orthonormal basis of m of the d directions, and r(x) the
length of what P leaves out of the unit row x. Then, by Cauchy and Schwarz,

    ⟨q, x⟩ ≤ ⟨Pᵀq, Pᵀx⟩ + r(q) · r(x),

a product of m + 1 columns. Only a pair whose bound exceeds the k-th best similarity so far can be a neighbour, and only
its similarity is computed. The result does not depend on P, but the time does. `strong_directions` estimates it from a
sample and gives no basis where the direct product would be about as fast. Similarities differ from those of one large
product by rounding alone, so only neighbours that are equally similar can be others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.largest import largest

_QUERIES, _COLUMNS = 1024, 2048  # of one product of bounds: 8 MB, which stays in the cache
_BLOCK = 16384  # rows of the bank between two updates of the best
_GROUP = 8  # columns whose largest bound is compared first
_CROWDED = 4  # a query with a possible neighbour in one of so many groups is compared with the whole block
_ROUNDING = 1e-5  # above the errors of products and lengths in float32

# The estimate of strong_directions. Times are in units of one column of a product.
_SAMPLE_QUERIES, _SAMPLE_ROWS = 64, 4096
_SHARES = (16, 8, 4)  # d / m of the bases that are considered
_LEAST_WORK = 1 << 34  # multiplications of the direct product, below which an estimate is not worth its time
_COMPARING, _RANKING = 100, 90  # per pair: comparing its bound; finding the largest of all similarities
_PAIR = 35_000  # a pair whose bound is too high: its similarity and its merging
_EARLIER = 3  # neighbours in the sample per expected one: the best so far are worse than the best in the end
_ADVANTAGE = 1.3  # of the estimated time over that of the direct product

Pairs = tuple[Int[Tensor, " _"], Int[Tensor, " _"]]  # queries in ascending order, and columns
Found = tuple[Float[Tensor, "q _"], Int[Tensor, "q _"]]  # similarities, and rows or columns


@torch.no_grad()
def strong_directions(queries: Float[Tensor, "q d"], bank: Float[Tensor, "n d"], k: int) -> Float[Tensor, "d m"] | None:
    """An orthonormal basis with which the search is expected to be clearly faster than without, if there is one.

    Only on a CPU: the bounds save multiplications, of which a GPU has plenty. Only for finite features.
    """
    width = bank.shape[1]
    if bank.device.type != "cpu" or k > _BLOCK or len(queries) * len(bank) * width < _LEAST_WORK:
        return None
    if not all(rows.sum(dtype=torch.float64).isfinite() for rows in (queries, bank)):
        return None
    rows, asked = _unit(_evenly(bank, _SAMPLE_ROWS)), _unit(_evenly(queries, _SAMPLE_QUERIES))
    sizes = [8 * (width // share // 8) - 1 for share in _SHARES if width // share >= 8]  # one column is added
    if not sizes:
        return None
    basis = _principal_directions(rows, sizes[-1])
    expected = -(-_EARLIER * k * len(rows) // len(bank))
    least = (asked @ rows.T).topk(min(expected, len(rows))).values[:, -1:]
    costs = {}
    for size in sizes:
        bounds = _bounding(asked, basis[:, :size]) @ _bounding(rows, basis[:, :size]).T
        costs[size] = size + _COMPARING + _PAIR * (bounds > least).float().mean().item()
    cheapest = min(sizes, key=costs.__getitem__)
    return basis[:, :cheapest].contiguous() if _ADVANTAGE * costs[cheapest] < width + _RANKING else None


@torch.no_grad()
def nearest_by_bounds(
    queries: Float[Tensor, "q d"],
    bank: Float[Tensor, "n d"],
    runs: Sequence[range],
    k: int,
    basis: Float[Tensor, "d m"],
    searched: Callable[[int], None],
) -> Found:
    """Cosine similarity and row of the k nearest of the rows in the runs, nearest first.

    `searched` is called with numbers of additional rows.
    """
    rows = torch.cat([torch.arange(run.start, run.stop) for run in runs])
    assert 1 <= k <= min(_BLOCK, len(rows)), f"k = {k} of {len(rows)} rows"
    best: dict[int, Found] = {}  # of every chunk of queries, in any order
    products = torch.empty(_QUERIES * _BLOCK, dtype=torch.float32)  # memory that all of them use
    blocks = -(-len(rows) // _BLOCK)
    with warnings.catch_warnings():  # torch calls the format a beta; it is used for nothing but one kind of product
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        for first in range(blocks):
            own = rows[first::blocks]  # evenly spaced: in rows sorted by class, the nearest would be found late
            keys = _unit(bank[own])
            bounding = _bounding(keys, basis)
            for number, chunk in enumerate(torch.split(queries, _QUERIES)):
                unit = _unit(chunk)
                asked = _bounding(unit, basis)
                known = [best[number]] if number in best else []
                near = known or [_candidates(unit, asked, keys, bounding, min(k, len(keys)), products)]
                least = _least(near[0][0], k)
                similarity, column = _nearest_possible(unit, keys, *_possible(asked, bounding, least, products), k)
                best[number] = _best(*known, (similarity, own[column]), k=k)
            searched(len(keys))
    similarity, index = (torch.cat(side) for side in zip(*best.values(), strict=True))
    similarity, order = similarity.sort(1, descending=True)
    return similarity, index.gather(1, order)


def _unit(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return F.normalize(rows.float(), dim=1)


def _evenly(rows: Float[Tensor, "n d"], count: int) -> Float[Tensor, "m d"]:
    """At most `count` rows at equal distances."""
    return rows[:: -(-len(rows) // count)]


def _principal_directions(rows: Float[Tensor, "n d"], size: int) -> Float[Tensor, "d {size}"]:
    """About the strongest directions of the rows, strongest first, by subspace iteration from some of the rows."""
    basis = torch.linalg.qr(rows[:size].T)[0]
    for _ in range(2):
        basis = torch.linalg.qr(rows.T @ (rows @ basis))[0]
    inside = rows @ basis
    return basis @ torch.linalg.eigh(inside.T @ inside)[1].flip(1)


def _bounding(unit: Float[Tensor, "n d"], basis: Float[Tensor, "d m"]) -> Float[Tensor, "n m+1"]:
    """Pᵀx and r(x) of every row: the product of two such rows is the bound."""
    inside = unit @ basis
    outside = (1 - inside.square().sum(1, keepdim=True)).clamp(min=0)
    return torch.cat([inside, (outside + _ROUNDING).sqrt()], 1)


def _candidates(
    unit: Float[Tensor, "q d"],
    asked: Float[Tensor, "q m"],
    keys: Float[Tensor, "n d"],
    bounding: Float[Tensor, "n m"],
    k: int,
    memory: Float[Tensor, " b"],
) -> Found:
    """The k rows with the largest bounds. They need not be the nearest, but are near."""
    column = largest(_product(asked, bounding, memory), k)[1]
    query = torch.arange(len(unit)).repeat_interleave(k)
    return _similarities(unit, keys, query, column.flatten())


def _least(known: Float[Tensor, "q _"], k: int) -> Float[Tensor, "q 1"]:
    """What a further neighbour has to exceed; with fewer than k known ones, nothing."""
    if known.shape[1] < k:
        return known.new_full((len(known), 1), -torch.inf)
    return known.amin(1, keepdim=True) - _ROUNDING


def _possible(
    asked: Float[Tensor, "q m"],
    bounding: Float[Tensor, "n m"],
    least: Float[Tensor, "q 1"],
    memory: Float[Tensor, " b"],
) -> tuple[Int[Tensor, " _"], Int[Tensor, " _"], Bool[Tensor, " q"]]:
    """Pairs with a bound above `least`, as queries in ascending order and columns; and the queries with so many such
    columns that they are left out."""
    found: list[Pairs] = []
    crowded = torch.zeros(len(asked), dtype=torch.bool)
    for start in range(0, len(bounding), _COLUMNS):
        bounds = _product(asked, bounding[start : start + _COLUMNS], memory)
        query, column = _exceeding(bounds, least, crowded)
        found.append((query, column + start))
    query, column = (torch.cat(side) for side in zip(*found, strict=True))
    kept = (~crowded[query]).nonzero()[:, 0]
    order = kept[query[kept].argsort(stable=True)]
    return query[order], column[order], crowded


def _product(
    left: Float[Tensor, "q m"], right: Float[Tensor, "n m"], memory: Float[Tensor, " b"]
) -> Float[Tensor, "q n"]:
    return torch.mm(left, right.T, out=memory[: len(left) * len(right)].view(len(left), len(right)))


def _exceeding(bounds: Float[Tensor, "q n"], least: Float[Tensor, "q 1"], crowded: Bool[Tensor, " q"]) -> Pairs:
    """Where bounds exceed `least`, in any order. A group of columns is compared by its maximum first, since most groups
    have nothing above. Queries with many such groups are marked as crowded, and theirs may be missing."""
    width = bounds.shape[1] // _GROUP
    groups = bounds[:, : _GROUP * width].view(len(bounds), _GROUP, width)
    tail = bounds[:, _GROUP * width :]
    above = groups.amax(1) > least
    crowded |= above.sum(1) > width // _CROWDED
    query, place = above.logical_and_(~crowded[:, None]).nonzero(as_tuple=True)
    hit, member = (groups[query, :, place] > least[query]).nonzero(as_tuple=True)
    last, column = (tail > least).nonzero(as_tuple=True)
    return torch.cat([query[hit], last]), torch.cat([member * width + place[hit], column + _GROUP * width])


def _nearest_possible(
    unit: Float[Tensor, "q d"],
    keys: Float[Tensor, "n d"],
    query: Int[Tensor, " p"],
    column: Int[Tensor, " p"],
    crowded: Bool[Tensor, " q"],
    k: int,
) -> Found:
    """Similarities and columns of the pairs, and for crowded queries the k nearest of all columns."""
    similarity, columns = _similarities(unit, keys, query, column)
    if not crowded.any():
        return similarity, columns
    nearest, place = largest(unit[crowded] @ keys.T, min(k, len(keys)))
    width = max(similarity.shape[1], nearest.shape[1])
    similarity = F.pad(similarity, (0, width - similarity.shape[1]), value=-torch.inf)
    columns = F.pad(columns, (0, width - columns.shape[1]))
    similarity[crowded, : nearest.shape[1]], columns[crowded, : nearest.shape[1]] = nearest, place
    return similarity, columns


def _similarities(
    unit: Float[Tensor, "q d"], keys: Float[Tensor, "n d"], query: Int[Tensor, " p"], column: Int[Tensor, " p"]
) -> Found:
    """Similarities of the pairs and their columns, in the rows of their queries, which are filled up with -∞."""
    counts = query.bincount(minlength=len(unit))
    starts = F.pad(counts.cumsum(0), (1, 0))
    size = (len(unit), len(keys))
    pattern = torch.sparse_csr_tensor(starts, column, unit.new_zeros(len(column)), size, check_invariants=False)
    computed = torch.sparse.sampled_addmm(pattern, unit, keys.T, beta=0.0).values()
    place = torch.arange(len(query)) - starts[query]
    similarity = unit.new_full((len(unit), int(counts.max())), -torch.inf)
    columns = column.new_zeros(similarity.shape)
    similarity[query, place], columns[query, place] = computed, column
    return similarity, columns


def _best(*found: Found, k: int) -> Found:
    """The k best of all, in any order."""
    similarity, rows = (torch.cat(side, 1) for side in zip(*found, strict=True))
    if similarity.shape[1] <= k:
        return similarity, rows
    similarity, place = similarity.topk(k, sorted=False)
    return similarity, rows.gather(1, place)
