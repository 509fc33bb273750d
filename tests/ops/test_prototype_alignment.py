import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import prototype_alignment
from asterism.ops.prototype_alignment import prototype_cross_entropy


def _inputs(n: int, m: int, k: int, p: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    embeddings = F.normalize(torch.randn(n, p, generator=g), dim=-1)
    prototypes = torch.randn(k, p, generator=g)
    targets = torch.randn(m, k, generator=g).softmax(dim=-1)
    targets[m // 2] = 0  # an underflowed row
    return embeddings, prototypes, targets, torch.randint(0, m, (n,), generator=g)


def _direct(embeddings: Tensor, prototypes: Tensor, targets: Tensor, which: Tensor, temperature: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for h, j in zip(embeddings.double(), which, strict=True):
        scaled = prototypes.double() @ h / temperature
        total = total - (targets[j].double() * torch.log(scaled.exp() / scaled.exp().sum())).sum()
    return total / len(embeddings)


@pytest.mark.parametrize("buffer", [1, 64, 1 << 22])
def test_value_and_gradients_against_loops(buffer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prototype_alignment, "_BUFFER", buffer)
    embeddings, prototypes, targets, which = _inputs(n=11, m=4, k=13, p=6)
    ours, oracle = [(embeddings.clone().requires_grad_(), prototypes.clone().requires_grad_()) for _ in range(2)]
    value = prototype_cross_entropy(*ours, targets, which, 0.12)
    expected = _direct(*oracle, targets, which, 0.12)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=0)
    (0.7 * value).backward()
    (0.7 * expected).backward()
    for mine, theirs in zip(ours, oracle, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_half_precision_inputs_are_computed_in_float32() -> None:
    embeddings, prototypes, targets, which = _inputs(n=8, m=4, k=9, p=6)
    rounded = embeddings.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = prototype_cross_entropy(rounded, prototypes, targets, which, 0.12)
    value.backward()
    assert value == prototype_cross_entropy(rounded.detach().float(), prototypes, targets, which, 0.12)
    assert rounded.grad is not None
    assert rounded.grad.dtype == torch.bfloat16
