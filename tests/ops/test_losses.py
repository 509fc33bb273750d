import pytest
import torch
from torch import Tensor

from asterism.ops.losses import cross_entropy, cross_view_loss, masked_rows_mean, soft_targets


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _slow_pairs(targets: Tensor, logits: Tensor, temperature: float) -> Tensor:
    losses = []
    for i, target in enumerate(targets):
        for j, student in enumerate(logits):
            if i != j:
                log_probability = torch.log(torch.softmax(student / temperature, dim=-1))
                losses.append(-(target * log_probability).sum(dim=-1).mean())
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("teachers", "views"), [(2, 2), (2, 7), (1, 3), (3, 5)])
def test_the_folded_loss_equals_the_loop_over_pairs(teachers: int, views: int) -> None:
    targets = soft_targets(_random(teachers, 4, 10).double(), _random(10, seed=1).double(), 0.3).double()
    fast, slow = (_random(views, 4, 10, seed=2).double().requires_grad_() for _ in range(2))
    ours, loop = cross_view_loss(targets, fast, 0.5), _slow_pairs(targets, slow, 0.5)
    ours.backward()
    loop.backward()
    torch.testing.assert_close(ours.double(), loop, rtol=1e-6, atol=0)
    torch.testing.assert_close(fast.grad, slow.grad, rtol=1e-5, atol=1e-7)


def test_rows_of_the_cross_entropy() -> None:
    targets, logits = _random(2, 3, 6).softmax(dim=-1), _random(2, 3, 6, seed=1).requires_grad_()
    rows = cross_entropy(targets, logits, 0.2)
    for i in range(2):
        for j in range(3):
            expected = -sum(targets[i, j, k] * (logits[i, j] / 0.2).log_softmax(dim=0)[k] for k in range(6))
            torch.testing.assert_close(rows[i, j], expected, rtol=1e-5, atol=1e-6)
    rows.sum().backward()
    torch.testing.assert_close(logits.grad, ((logits / 0.2).softmax(dim=-1) - targets) / 0.2, rtol=1e-4, atol=1e-6)


def test_targets_are_centred_sharpened_and_without_gradient() -> None:
    logits, center = _random(3, 5).requires_grad_(), _random(5, seed=1)
    targets = soft_targets(logits, center, 0.1)
    torch.testing.assert_close(targets, torch.softmax((logits.detach() - center) / 0.1, dim=-1))
    assert not targets.requires_grad


def test_half_precision_logits_are_promoted_to_float32() -> None:
    logits = (_random(2, 3, 100) * 8).bfloat16()
    targets = soft_targets(logits, torch.zeros(100), 0.04)
    assert targets.dtype == torch.float32
    assert targets.sum(dim=-1).sub(1).abs().max() < 1e-5
    assert cross_view_loss(targets, logits, 0.1).dtype == torch.float32


def test_masked_patches_are_averaged_by_image() -> None:
    values = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(4, 5, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[2] = False
    mask[3] = True
    expected = 0.0
    for i in range(4):
        masked = [float(values[i, j]) for j in range(5) if mask[i, j]]
        expected += sum(masked) / max(1, len(masked)) / 4
    torch.testing.assert_close(masked_rows_mean(values[mask], mask), torch.tensor(expected))
    assert masked_rows_mean(values[:0, 0], torch.zeros_like(mask)) == 0
