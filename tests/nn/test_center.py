import pytest
import torch
from torch import Tensor

from asterism.nn.center import Center


def _logits(rows: int) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(3))


def _center(parts: list[Tensor]) -> Tensor:
    center = Center(6, momentum=0.8)
    center.value += 1
    for part in parts:
        center.accumulate(part)
    center.update()
    return center.value


def test_micro_batches_of_any_size_count_as_one_batch() -> None:
    logits = _logits(10)
    expected = 0.8 * torch.ones(6) + 0.2 * logits.mean(dim=0)
    torch.testing.assert_close(_center([logits]), expected)
    torch.testing.assert_close(_center([logits[:7], logits[7:]]), expected)
    torch.testing.assert_close(_center([logits.reshape(2, 5, 6)]), expected)


def test_accumulating_does_not_move_the_centre_and_an_update_clears_it() -> None:
    center = Center(6, momentum=0.5)
    center.accumulate(torch.full((4, 6), 8.0))
    assert center.value.equal(torch.zeros(6))
    center.update()
    assert center.value.equal(torch.full((6,), 4.0))
    center.accumulate(torch.full((1, 6), 4.0))
    center.update()
    assert center.value.equal(torch.full((6,), 4.0))
    with pytest.raises(AssertionError):
        center.update()


def test_projections_count_as_the_layers_logits() -> None:
    g = torch.Generator().manual_seed(1)
    layer, projections, center = torch.nn.Linear(4, 6, bias=False), torch.randn(2, 5, 4, generator=g), Center(6, 0.8)
    center.value += 1
    center.accumulate_projections(projections, layer, torch.tensor([True, False, True, False, False]))
    center.accumulate_projections(projections, layer, torch.zeros(5, dtype=torch.bool))
    center.accumulate(layer(projections[:, [1, 3]]))
    center.update()
    torch.testing.assert_close(center.value, _center([layer(projections[:, :4].flatten(0, 1)).detach()]))


def test_a_step_without_rows_does_not_move_the_centre() -> None:
    center = Center(6, momentum=0.8)
    center.value += 1
    center.accumulate(_logits(0))
    center.update()
    assert center.value.equal(torch.ones(6))
