"""Nearest neighbours with bounds: the same as without, whatever the features and the basis."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import bounded_search, neighbours
from asterism.ops.bounded_search import nearest_by_bounds, strong_directions
from asterism.ops.neighbours import nearest, nearest_in_parts
from asterism.ops.random import generator


def decaying(key: int, rows: int, channels: int, decay: float) -> Tensor:
    """Features whose i-th direction has the standard deviation decay ** i, rotated."""
    rotation = torch.linalg.qr(torch.randn(channels, channels, generator=generator(channels)))[0]
    return torch.randn(rows, channels, generator=generator(key)) * decay ** torch.arange(channels) @ rotation


def small_sizes(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    usual = {"_QUERIES": 7, "_COLUMNS": 21, "_BLOCK": 64, "_GROUP": 4, "_LEAST_WORK": 0}
    for name, value in (usual | sizes).items():
        monkeypatch.setattr(bounded_search, name, value)


def cosines(queries: Tensor, bank: Tensor) -> Tensor:
    return F.normalize(queries.double(), dim=1) @ F.normalize(bank.double(), dim=1).T


def random_basis(channels: int, size: int) -> Tensor:
    return torch.linalg.qr(torch.randn(channels, size, generator=generator(9)))[0]


@pytest.mark.parametrize("decay", [1.0, 0.8, 0.3])  # without strong directions, with some, with one
@pytest.mark.parametrize("basis", ["principal", "random"])
@pytest.mark.parametrize("k", [1, 5, 60])
def test_neighbours_are_those_of_all_similarities(
    decay: float, basis: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_sizes(monkeypatch)
    queries, bank = decaying(1, 23, 24, decay), decaying(2, 301, 24, decay)
    directions = bounded_search._principal_directions(F.normalize(bank), 6) if basis == "principal" else None
    directions = random_basis(24, 6) if directions is None else directions
    counted: list[int] = []
    similarity, index = nearest_by_bounds(queries, bank, [range(301)], k, directions, counted.append)
    expected = cosines(queries, bank)
    torch.testing.assert_close(similarity.double(), expected.sort(descending=True).values[:, :k], atol=1e-6, rtol=0)
    torch.testing.assert_close(similarity.double(), expected.gather(1, index), atol=1e-6, rtol=0)
    assert all(len(set(rows)) == k for rows in index.tolist())
    assert sum(counted) == 301


def test_bounds_are_never_below_similarities() -> None:
    queries, bank = decaying(1, 50, 32, 0.7), decaying(2, 400, 32, 0.7)
    bank[3], bank[4] = 0.0, queries[0]  # a row without a direction, and an equal one
    for basis in (bounded_search._principal_directions(F.normalize(bank), 31), random_basis(32, 8)):
        left, right = (bounded_search._bounding(F.normalize(rows, dim=1), basis) for rows in (queries, bank))
        assert (left.double() @ right.double().T >= cosines(queries, bank)).all()


def test_few_pairs_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The point of the bounds: with strong directions, few more pairs than there are neighbours."""
    computed: list[int] = []
    direct = bounded_search._similarities

    def counting(unit: Tensor, keys: Tensor, query: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        computed.append(len(query))
        return direct(unit, keys, query, column)

    monkeypatch.setattr(bounded_search, "_similarities", counting)
    queries, bank = decaying(1, 64, 64, 0.8), decaying(2, 4000, 64, 0.8)
    small_sizes(monkeypatch, _BLOCK=1000)
    basis = bounded_search._principal_directions(F.normalize(bank), 16)
    nearest_by_bounds(queries, bank, [range(4000)], 5, basis, lambda rows: None)
    assert sum(computed) < 0.02 * 64 * 4000


def test_rounding_hides_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """More nearly equal rows than neighbours: each is as near as the last one, up to rounding."""
    small_sizes(monkeypatch)
    query = decaying(1, 1, 48, 0.9)
    bank = query.repeat(150, 1) + 1e-4 * decaying(2, 150, 48, 1.0)
    basis = bounded_search._principal_directions(F.normalize(decaying(3, 100, 48, 0.9)), 40)
    similarity, _ = nearest_by_bounds(query, bank, [range(150)], 10, basis, lambda rows: None)
    expected = cosines(query, bank).sort(descending=True).values[:, :10]
    torch.testing.assert_close(similarity.double(), expected, atol=3e-7, rtol=0)


def test_queries_without_direction_do_not_burden_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of zeros is as similar to everything: all its bounds are above its best similarity."""
    small_sizes(monkeypatch, _BLOCK=100, _QUERIES=30)
    queries, bank = decaying(1, 40, 64, 0.7), decaying(2, 1000, 64, 0.7)
    queries[7] = queries[35] = 0.0
    basis = bounded_search._principal_directions(F.normalize(bank), 16)
    widest: list[int] = []
    direct = bounded_search._similarities

    def measured(unit: Tensor, keys: Tensor, query: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        found = direct(unit, keys, query, column)
        widest.append(found[0].shape[1])
        return found

    monkeypatch.setattr(bounded_search, "_similarities", measured)
    similarity, index = nearest_by_bounds(queries, bank, [range(1000)], 6, basis, lambda rows: None)
    expected = cosines(queries, bank)
    torch.testing.assert_close(similarity.double(), expected.topk(6).values, atol=1e-6, rtol=0)
    torch.testing.assert_close(similarity.double(), expected.gather(1, index), atol=1e-6, rtol=0)
    assert max(widest) < 60


def test_banks_in_the_order_of_classes_are_searched_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best so far must come from everywhere, not from the first classes."""
    small_sizes(monkeypatch, _BLOCK=500, _QUERIES=64, _COLUMNS=500)
    classes = 5 * decaying(3, 20, 64, 0.8)
    bank = classes.repeat_interleave(200, 0) + decaying(2, 4000, 64, 0.8)
    queries = classes.repeat(3, 1) + decaying(1, 60, 64, 0.8)
    basis = bounded_search._principal_directions(F.normalize(bank), 16)
    computed: dict[str, int] = {}
    direct = bounded_search._nearest_possible
    for name, order in {"sorted": torch.arange(4000), "mixed": torch.randperm(4000, generator=generator(4))}.items():
        computed[name] = 0

        def counting(*given: Any, name: str = name) -> Any:
            _, keys, query, _, crowded, _ = given
            computed[name] += len(query) + int(crowded.sum()) * len(keys)
            return direct(*given)

        monkeypatch.setattr(bounded_search, "_nearest_possible", counting)
        nearest_by_bounds(queries, bank[order], [range(4000)], 5, basis, lambda rows: None)
    assert computed["sorted"] < 1.3 * computed["mixed"]


def test_equal_rows_are_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch)
    bank = decaying(2, 10, 16, 0.8).repeat(20, 1)
    similarity, index = nearest_by_bounds(bank[:3], bank, [range(200)], 20, random_basis(16, 4), lambda rows: None)
    torch.testing.assert_close(similarity, torch.ones(3, 20))
    assert [sorted(rows) for rows in index.tolist()] == [list(range(row, 200, 10)) for row in range(3)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_large_banks_are_searched_with_bounds(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, _COMPARING=0, _PAIR=0)
    queries, bank = (decaying(key, rows, 128, 0.7).to(dtype) for key, rows in ((1, 20), (2, 500)))
    expected = nearest(queries, bank, 4)
    parts = [[range(500)], [range(3, 9)], [], [range(10, 250), range(260, 400)]]
    expected_parts = nearest_in_parts(queries, bank, parts, 9)

    used: list[int] = []
    bounded = neighbours.nearest_by_bounds

    def recording(*arguments: object) -> tuple[Tensor, Tensor]:
        used.append(1)
        return bounded(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(neighbours, "nearest_by_bounds", recording)
    monkeypatch.setattr(neighbours, "_BOUNDED", 300)
    for ours, direct in zip(
        [nearest(queries, bank, 4), *nearest_in_parts(queries, bank, parts, 9)],
        [expected, *expected_parts],
        strict=True,
    ):
        torch.testing.assert_close(ours[0], direct[0])
        assert ours[1].equal(direct[1])
    assert len(used) == 3  # the whole bank twice, and the large part


def test_a_basis_is_given_only_where_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = decaying(1, 200, 256, 0.9), decaying(2, 5000, 256, 0.9)
    assert strong_directions(queries, bank, 5) is None  # less work than the estimate
    monkeypatch.setattr(bounded_search, "_LEAST_WORK", 0)
    basis = strong_directions(queries, bank, 5)
    assert basis is not None
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), atol=1e-5, rtol=0)
    assert strong_directions(queries, bank, 2500) is None  # half of all pairs would be computed one by one
    assert strong_directions(decaying(1, 200, 256, 1.0), decaying(2, 5000, 256, 1.0), 5) is None
    assert strong_directions(decaying(1, 200, 6, 0.5), decaying(2, 5000, 6, 0.5), 5) is None  # too few channels
    assert strong_directions(queries, bank, bounded_search._BLOCK + 1) is None
    for broken in (torch.nan, torch.inf):
        once = bank.clone()
        once[3, 4] = broken
        assert strong_directions(queries, once, 5) is None


def test_small_parts_in_sum_as_large_as_the_bank_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    small_sizes(monkeypatch, _COMPARING=0, _PAIR=0)
    monkeypatch.setattr(neighbours, "_BOUNDED", 300)
    monkeypatch.setattr(neighbours, "nearest_by_bounds", None)
    queries, bank = decaying(1, 20, 128, 0.7), decaying(2, 500, 128, 0.7)
    whole, *_ = nearest_in_parts(queries, bank, [[range(500)], [range(100)], [range(200, 300)]], 3)
    torch.testing.assert_close(whole[0].double(), cosines(queries, bank).topk(3).values, atol=1e-6, rtol=0)
