from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asterism.ops import largest
from asterism.ops.random import generator


def gaussian(key: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(key))


@pytest.mark.parametrize("k", [1, 4, 11])
def test_groups_of_columns_do_not_change_the_largest(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = gaussian(3, 9, 16 * 47 + 5)  # 47 groups of 16 and a remainder
    monkeypatch.setattr(largest, "_WORTH_GROUPS", 1)
    expected = values.topk(k)
    found, index = largest.largest(values, k)
    assert found.equal(expected.values)
    assert index.equal(expected.indices)


@pytest.mark.parametrize("above", [-10.0, 2.0, 2.6, 10.0])
def test_values_that_cannot_matter_may_be_missing(above: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values = gaussian(3, 9, 16 * 47 + 5)
    monkeypatch.setattr(largest, "_WORTH_GROUPS", 1)
    expected, place = values.topk(11)
    found, index = largest.largest(values, 11, torch.full((9, 1), above))
    for row in range(9):
        count = int((expected[row] > above).sum())
        assert found[row, :count].equal(expected[row, :count])
        assert index[row, :count].equal(place[row, :count])


def test_no_value_matters() -> None:
    values = gaussian(3, 9, 16 * 64)
    found, index = largest.largest(values, 2, torch.full((9, 1), 100.0))
    assert found.shape == index.shape == (9, 0)


def test_a_search_in_groups_of_groups() -> None:
    values = gaussian(4, 5, 16384)
    expected = values.topk(200)
    found, index = largest.largest(values, 200)  # 16 × 1024 columns, then 4 × 800
    assert found.equal(expected.values)
    assert index.equal(expected.indices)
