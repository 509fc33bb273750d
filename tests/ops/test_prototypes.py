"""What the equations in test_sop.py do not show: extreme temperatures and low precision."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import prototypes as P
from asterism.ops.neighbours import nearest_rows
from asterism.ops.random import generator

FORMS = ["similarity", "constant", "block-diagonal", "one-hot"]


def unit(key: int, *shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=generator(key), dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("form", FORMS)
def test_finite_at_a_temperature_where_far_votes_vanish(form: P.Contribution) -> None:
    memory = unit(1, 30, 4).float()
    prototypes = P.organize(memory, P.supports_outside_anchors(memory, torch.arange(6), 2, nearest_rows), form, 0.1)
    rows = unit(2, 5, 4).float().requires_grad_()
    entropy = P.grouped_cross_entropy(rows, torch.full((5, 6), 1 / 6), prototypes, temperature=0.004)
    entropy.sum().backward()
    assert entropy.isfinite().all()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_low_precision_rows_are_computed_in_single_precision() -> None:
    memory = unit(1, 20, 4).float()
    prototypes = P.organize(
        memory, P.supports_outside_anchors(memory, torch.arange(6), 2, nearest_rows), "similarity", 0.1
    )
    half = unit(2, 3, 4).to(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        entropy = P.grouped_cross_entropy(half, torch.full((3, 6), 1 / 6), prototypes, 0.1)
    exact = P.grouped_cross_entropy(half.detach().float(), torch.full((3, 6), 1 / 6), prototypes, 0.1)
    torch.testing.assert_close(entropy, exact)
    entropy.sum().backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16
