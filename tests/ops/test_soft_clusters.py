import math

import pytest
import torch
from torch import Tensor

from asterism.ops import soft_clusters
from asterism.ops.soft_clusters import Assignments, PowerLaw, agreement, balancing_offset, divergence, prior_shares

G = torch.Generator().manual_seed(0)
N, K, P = 11, 6, 4


def _networks() -> tuple[Assignments, Assignments]:
    h, q = (torch.randn(N, P, generator=G) for _ in range(2))
    c, d = (torch.randn(K, P, generator=G) for _ in range(2))
    return Assignments(h.requires_grad_(), c.requires_grad_(), 0.4), Assignments(q, d, 0.2)


def _slow(student: Assignments, teacher: Assignments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def distributions(a: Assignments) -> list[Tensor]:
        rows = []
        for h in a.embeddings:
            offset = torch.zeros(K) if a.offset is None else a.offset
            weights = torch.stack(
                [(c @ h / a.temperature - o).exp() for c, o in zip(a.prototypes, offset, strict=True)]
            )
            rows.append(weights / weights.sum())
        return rows

    p, q = distributions(student), distributions(teacher)
    pairs = list(zip(p, q, strict=True))
    cross = -sum((b.detach() * a.log()).sum() for a, b in pairs) / N
    return cross, sum(p) / N, -sum((b * b.log()).sum() for b in q) / N, -sum((a * a.log()).sum() for a in p) / N


@pytest.mark.parametrize("chunk", [1, 4 * K, 1000 * K])
def test_agreement_and_gradients_are_those_of_the_slow_loop(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(soft_clusters, "_CHUNK", chunk)
    student, teacher = _networks()
    teacher = Assignments(teacher.embeddings, teacher.prototypes, teacher.temperature, torch.randn(K, generator=G))
    ours, slow = agreement(student, teacher), _slow(student, teacher)
    found = (ours.cross_entropy, ours.mean_probability, ours.target_entropy, ours.prediction_entropy)
    for mine, theirs in zip(found, slow, strict=True):
        torch.testing.assert_close(mine, theirs)
    weight = torch.randn(K, generator=G)
    leaves = (student.embeddings, student.prototypes)
    own = torch.autograd.grad(0.7 * ours.cross_entropy + weight @ ours.mean_probability, leaves)
    expected = torch.autograd.grad(0.7 * slow[0] + weight @ slow[1], leaves)
    for mine, theirs in zip(own, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_only_the_student_gets_gradients() -> None:
    student, teacher = _networks()
    teacher.embeddings.requires_grad_()
    found = agreement(student, teacher)
    assert not found.target_entropy.requires_grad
    assert not found.prediction_entropy.requires_grad
    found.cross_entropy.backward()
    assert teacher.embeddings.grad is None


def test_extreme_logits_stay_finite() -> None:
    student, teacher = _networks()
    sharp = Assignments(student.embeddings, student.prototypes, 1e-3)
    found = agreement(sharp, Assignments(teacher.embeddings, teacher.prototypes, 1e-3))
    loss = found.cross_entropy + divergence(found.mean_probability, torch.full((K,), -math.log(K)))
    gradients = torch.autograd.grad(loss, (student.embeddings, student.prototypes))
    assert all(value.isfinite().all() for value in (loss, *gradients))


def test_divergence_is_kullback_leibler() -> None:
    mean, prior = (torch.rand(K, generator=G) for _ in range(2))
    mean, prior = mean / mean.sum(), prior / prior.sum()
    expected = sum(p * math.log(p / q) for p, q in zip(mean.tolist(), prior.tolist(), strict=True))
    torch.testing.assert_close(divergence(mean, prior.log()), torch.tensor(expected))
    torch.testing.assert_close(divergence(prior, prior.log()), torch.tensor(0.0))
    one = torch.eye(K)[0]
    torch.testing.assert_close(divergence(one, torch.full((K,), -math.log(K))), torch.tensor(math.log(K)))


def test_balanced_targets_are_a_renormalised_softmax_over_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft_clusters, "_CHUNK", 4 * K)
    _, teacher = _networks()
    logits = teacher.embeddings @ teacher.prototypes.T / teacher.temperature
    over_batch = logits.softmax(dim=0)
    expected = over_batch / over_batch.sum(dim=1, keepdim=True)
    torch.testing.assert_close((logits - balancing_offset(teacher)).softmax(dim=1), expected)


def test_priors_are_shares() -> None:
    assert prior_shares((0.5, 0.3, 0.2), 3).tolist() == [0.5, 0.3, 0.2]
    law = prior_shares(PowerLaw(exponent=1.0), 4)
    torch.testing.assert_close(law, torch.tensor([12.0, 6.0, 4.0, 3.0], dtype=torch.float64) / 25)
    torch.testing.assert_close(prior_shares(None, 12), torch.full((12,), 1 / 12, dtype=torch.float64))
