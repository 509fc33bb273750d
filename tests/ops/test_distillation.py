import pytest
import torch
from torch import Tensor

from asterism.ops.distillation import queue_distillation, resample_tokens, token_distance


def _rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _triangle(old: int, new: int, place: int) -> list[float]:
    """Weights of the old cells in a new one: a triangle around its centre, as wide as the coarser of the two cells."""
    centre, reach = (place + 0.5) * old / new, max(1.0, old / new)
    weights = [max(0.0, 1 - abs(j + 0.5 - centre) / reach) for j in range(old)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(("old", "new"), [((4, 6), (2, 3)), ((3, 2), (4, 5)), ((3, 3), (3, 3))])
def test_tokens_are_resampled_over_the_same_image(old: tuple[int, int], new: tuple[int, int]) -> None:
    tokens = _rows(2, old[0] * old[1], 3)
    found = resample_tokens(tokens, old, new).unflatten(1, new)
    for row in range(new[0]):
        for column in range(new[1]):
            expected = torch.zeros(2, 3, dtype=torch.float64)
            for i, down in enumerate(_triangle(old[0], new[0], row)):
                for j, right in enumerate(_triangle(old[1], new[1], column)):
                    expected += down * right * tokens[:, i * old[1] + j]
            torch.testing.assert_close(found[:, row, column], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("own_target", [True, False])
def test_queue_loss_and_gradient_are_those_of_the_slow_loop(own_target: bool) -> None:
    student, teacher = _rows(3, 4).requires_grad_(), _rows(3, 4, seed=1).requires_grad_()
    queue = torch.nn.functional.normalize(_rows(5, 4, seed=2), dim=1)
    losses, targets = queue_distillation(
        student, teacher, queue, teacher_temp=0.1, student_temp=0.3, own_target=own_target
    )
    expected = []
    for s, t in zip(student, teacher, strict=True):
        z, y = (t / t.norm()).detach(), s / s.norm()
        rows = [*queue, z] if own_target else [*queue]
        p = [torch.exp(row @ z / 0.1) for row in rows]
        q = [torch.exp(row @ y / 0.3) for row in rows]
        expected.append(-sum(a / sum(p) * torch.log(b / sum(q)) for a, b in zip(p, q, strict=True)))
    torch.testing.assert_close(losses, torch.stack(expected))
    assert targets.shape == (3, 5 + own_target)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(3, dtype=torch.float64))
    (own,) = torch.autograd.grad(losses.sum(), student, retain_graph=True)
    (slow,) = torch.autograd.grad(torch.stack(expected).sum(), student)
    torch.testing.assert_close(own, slow)
    assert torch.autograd.grad(losses.sum(), teacher, allow_unused=True) == (None,)


def test_targets_have_no_gradient_and_half_precision_is_promoted() -> None:
    student, teacher = _rows(3, 4).requires_grad_(), _rows(3, 4, seed=1).requires_grad_()
    for distance in ("cosine", "mse"):
        total = token_distance(student, teacher, distance).sum()
        assert torch.autograd.grad(total, teacher, allow_unused=True) == (None,)
    assert token_distance(student.bfloat16(), teacher.bfloat16(), "cosine").dtype == torch.float32
