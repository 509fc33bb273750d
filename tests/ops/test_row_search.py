from __future__ import annotations

import pytest
import torch

from asterism.ops import row_search
from asterism.ops.row_search import most_similar_row, reciprocal_lengths


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_search, "_QUERIES", 4)
    monkeypatch.setattr(row_search, "_ROWS", 5)


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 5, 23])
def test_the_nearest_row_by_cosine_across_tiles(rows: int) -> None:
    queries, stored = _draw(10, 6), _draw(rows, 6, seed=1) * torch.arange(1, rows + 1)[:, None]
    expected = [max(range(rows), key=lambda j: float(query @ stored[j] / stored[j].norm())) for query in queries]
    assert most_similar_row(queries, stored).tolist() == expected
    assert most_similar_row(queries, stored, reciprocal_length=reciprocal_lengths(stored)).tolist() == expected


def test_only_allowed_rows_of_other_groups() -> None:
    queries, stored = _draw(9, 6), _draw(23, 6, seed=1)
    among = torch.tensor([2, 3, 5, 7, 11, 13, 17, 19])
    query_group, row_group = torch.arange(9) % 3, torch.arange(23) % 4
    found = most_similar_row(queries, stored, among=among, query_group=query_group, row_group=row_group)
    unit = torch.nn.functional.normalize(stored, dim=1)
    for i, query in enumerate(queries):
        allowed = [j for j in among.tolist() if row_group[j] != query_group[i]]
        assert found[i] == max(allowed, key=lambda j: float(query @ unit[j]))


def test_nothing_to_choose_from() -> None:
    queries, stored = _draw(3, 6), _draw(2, 6)
    none = torch.zeros(0, dtype=torch.int64)
    assert most_similar_row(queries, stored, among=none).tolist() == [-1, -1, -1]
    group = torch.zeros(3, dtype=torch.int64)
    assert most_similar_row(queries, stored, query_group=group, row_group=group[:2]).tolist() == [-1, -1, -1]
    assert most_similar_row(queries[:0], stored).tolist() == []


def test_half_precision_rows_are_compared_in_single_precision() -> None:
    stored = (_draw(23, 64, seed=1) * 30).half()
    queries = stored.float() + 0.01
    assert most_similar_row(queries, stored).equal(torch.arange(23))
    with torch.autocast("cpu", torch.bfloat16):
        assert most_similar_row(queries, stored).equal(torch.arange(23))
