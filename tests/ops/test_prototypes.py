"""Comparison with the equations, with the matrix Y written out entry by entry."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import neighbours
from asterism.ops import prototypes as P
from asterism.ops.neighbours import nearest_rows
from asterism.ops.random import generator

FORMS = ["similarity", "constant", "block-diagonal", "one-hot"]


def unit(key: int, *shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=generator(key), dtype=torch.float64), dim=-1)


def written_out(memory: Tensor, supports: P.Supports, form: str, smoothing: float) -> tuple[Tensor, Tensor]:
    """D and Y: one row per member, one column per prototype."""
    K, m = supports.index.shape
    D, Y = [], []
    for i in range(K):
        for j in range(m):
            row = int(supports.index[i, j])
            anchor = int(supports.anchors[i])
            cosine = float(memory[row] @ memory[anchor])
            w = 1 - smoothing if row == anchor else min(max(cosine, 0.0), 1.0)
            w = {"similarity": w, "constant": 1 - smoothing, "block-diagonal": w, "one-hot": 1.0}[form]
            elsewhere = (1 - w) / (K - 1) if form in ("similarity", "constant") else 0.0
            D.append(memory[row])
            Y.append([w if column == i else elsewhere for column in range(K)])
    return torch.stack(D), torch.tensor(Y, dtype=memory.dtype)


def slow_probabilities(rows: Tensor, D: Tensor, Y: Tensor, temperature: float) -> Tensor:
    p = torch.softmax(rows @ D.T / temperature, dim=1) @ Y
    return p / p.sum(dim=1, keepdim=True)  # changes the block-diagonal form only


def supports(rule: str, memory: Tensor, anchors: Tensor, neighbours: int) -> P.Supports:
    if rule == "outside":
        return P.supports_outside_anchors(memory, anchors, neighbours, nearest_rows)
    return P.supports_in_memory(memory, anchors, neighbours + 1, nearest_rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rule", "neighbours"), [("outside", 0), ("outside", 3), ("whole", 0), ("whole", 3)])
def test_probabilities_loss_and_gradient_equal_the_product_with_y(
    form: P.Contribution, rule: str, neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(P, "_CHUNK", 100)  # several chunks, the last one smaller
    memory, rows = unit(1, 40, 8), unit(2, 11, 8)
    found = supports(rule, memory, torch.randperm(40, generator=generator(3))[:7], neighbours)
    ours = P.organize(memory, found, form, smoothing=0.15)
    targets = torch.rand(11, 7, generator=generator(4), dtype=torch.float64)
    weights = torch.rand(11, generator=generator(5), dtype=torch.float64)

    slow_rows = rows.clone().requires_grad_()
    p = slow_probabilities(slow_rows, *written_out(memory, found, form, 0.15), temperature=0.1)
    slow_entropy = -(targets * p.log()).sum(dim=1)
    (slow_entropy @ weights).backward()

    log_p = P.log_probabilities(rows.float(), _single(ours), 0.1)
    torch.testing.assert_close(log_p.double(), p.detach().log(), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(log_p.exp().sum(dim=1), torch.ones(11))

    fast_rows = rows.float().requires_grad_()
    entropy = P.grouped_cross_entropy(fast_rows, targets.float(), _single(ours), 0.1)
    (entropy @ weights.float()).backward()
    torch.testing.assert_close(entropy.double(), slow_entropy.detach(), atol=1e-5, rtol=1e-5)
    assert fast_rows.grad is not None
    assert slow_rows.grad is not None
    torch.testing.assert_close(fast_rows.grad.double(), slow_rows.grad, atol=2e-5, rtol=1e-5)


def _single(prototypes: P.Prototypes) -> P.Prototypes:
    return P.Prototypes(prototypes.members.float(), prototypes.own.float(), prototypes.everywhere.float())


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


@pytest.mark.parametrize("tile", [3, 7, 2048])
def test_search_outside_anchors_equals_loops(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_MEMORY", tile)
    memory = unit(1, 40, 5)
    anchors = torch.randperm(40, generator=generator(2))[:9]
    found = P.supports_outside_anchors(memory, anchors, 4, nearest_rows)
    taken = set(anchors.tolist())
    for i, anchor in enumerate(anchors.tolist()):
        others = [j for j in range(40) if j not in taken]
        others.sort(key=lambda j: -float(memory[j] @ memory[anchor]))
        assert found.index[i].tolist() == [*others[:4], anchor]
        expected = [float(memory[j] @ memory[anchor]) for j in found.index[i].tolist()]
        torch.testing.assert_close(found.similarity[i], torch.tensor(expected, dtype=torch.float64))


def test_search_in_the_whole_memory_equals_loops() -> None:
    memory = unit(1, 40, 5)
    anchors = torch.randperm(40, generator=generator(2))[:9]
    found = P.supports_in_memory(memory, anchors, 4, nearest_rows)
    for i, anchor in enumerate(anchors.tolist()):
        rows = sorted(range(40), key=lambda j: -float(memory[j] @ memory[anchor]))
        assert found.index[i].tolist() == rows[:4]
        assert rows[0] == anchor


@pytest.mark.parametrize("drawn", [23, 21])  # with and without the remainder, which does not fill a block
def test_blocks_are_softmaxes_over_disjoint_parts_of_the_memory(drawn: int) -> None:
    memory, rows = unit(1, 23, 5).float(), unit(2, 4, 5).float()
    permutation = torch.randperm(23, generator=generator(3))[:drawn]
    blocks = list(P.permuted_blocks(memory, permutation, 7))
    assert len(blocks) == 3  # 23 = 3 · 7 and a remainder of two
    for number, block in enumerate(blocks):
        log_p = P.log_probabilities(rows, block, 0.2)
        for r in range(4):
            logits = [float(rows[r] @ memory[permutation[7 * number + i]]) / 0.2 for i in range(7)]
            norm = math.log(sum(math.exp(v) for v in logits))
            torch.testing.assert_close(log_p[r], torch.tensor([v - norm for v in logits]), atol=1e-5, rtol=1e-5)
