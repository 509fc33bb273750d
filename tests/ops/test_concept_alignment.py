import torch
from torch import Tensor
from torch.nn import functional as F

from asterism.ops import assignment, concept_alignment
from asterism.ops.concept_alignment import AlignmentConfig, Concepts, align_concepts, class_cross_entropy

CONFIG = AlignmentConfig(target_temp=0.2, prediction_temp=0.3)


def _concepts(*shape: int, seed: int) -> Concepts:
    g = torch.Generator().manual_seed(seed)
    return Concepts(
        torch.randn(*shape, 6, generator=g).requires_grad_(),
        F.normalize(torch.randn(*shape, 5, generator=g), dim=-1).requires_grad_(),
    )


def _slow(clean: Concepts, masked: Concepts, C: Tensor, teacher: tuple[Concepts, Tensor] | None) -> tuple[Tensor, ...]:
    """Image by image, view by view, token by token."""
    S, h, prototypes = (clean.S, clean.h, C) if teacher is None else (teacher[0].S, teacher[0].h, teacher[1])
    logits = torch.stack([prototypes @ row for image in h for row in image]).detach()
    q = assignment.sinkhorn_knopp(logits, 0.2, 3).unflatten(0, h.shape[:2])
    losses: dict[str, list[Tensor]] = {"cluster": [], "align": []}
    for i in range(len(S)):
        views = {"cluster": [(clean.S[i], clean.h[i])], "align": list(zip(masked.S[i], masked.h[i], strict=True))}
        for name, members in views.items():
            for tokens, projected in members:
                plan = assignment.transport_plan(assignment.distances(tokens, S[i]), 0.1, 5)
                sigma = range(len(tokens)) if name == "cluster" and teacher is None else plan.argmax(dim=1)
                for j, k in enumerate(sigma):
                    losses[name].append(-(q[i, k] * torch.log_softmax(C @ projected[j] / 0.3, dim=0)).sum())
    return tuple(torch.stack(values).mean() for values in losses.values())


def test_losses_and_gradients_are_those_of_the_slow_loop() -> None:
    g = torch.Generator().manual_seed(9)
    C, other = (torch.randn(7, 5, generator=g).requires_grad_() for _ in range(2))
    clean, masked, taught = _concepts(3, 4, seed=0), _concepts(3, 2, 4, seed=1), _concepts(3, 4, seed=2)
    inputs = [clean.h, masked.h, C, clean.S, masked.S, taught.S, taught.h, other]
    for teacher in (None, (taught, other)):
        ours = align_concepts(clean, masked, C, CONFIG, teacher)
        slow = _slow(clean, masked, C, teacher)
        for mine, theirs in zip((ours.cluster, ours.align), slow, strict=True):
            torch.testing.assert_close(mine, theirs)
        gradients = torch.autograd.grad(ours.cluster + 2 * ours.align, inputs, allow_unused=True)
        expected = torch.autograd.grad(slow[0] + 2 * slow[1], inputs[:3])
        for mine, theirs in zip(gradients[:3], expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        assert all(gradient is None for gradient in gradients[3:]), "q̃, σ and S are constants"


def test_without_masked_views_there_is_only_clustering() -> None:
    C = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    alignment = align_concepts(_concepts(3, 4, seed=0), None, C)
    assert alignment.align is None
    assert set(alignment.usage()) == {"target_entropy", "prototypes_in_use"}


def test_usage_counts_prototypes_and_matches() -> None:
    q = torch.eye(4)[[0, 1, 1, 1]].view(2, 2, 4)
    sigma = torch.tensor([[[0, 1]], [[1, 1]]])
    usage = concept_alignment.Alignment(torch.zeros(()), torch.zeros(()), q, sigma, sigma).usage()
    assert {name: float(value) for name, value in usage.items()} == {
        "target_entropy": 0,
        "prototypes_in_use": 0.5,
        "matched": 0.75,
    }


def test_class_tokens_have_the_target_of_their_image() -> None:
    g = torch.Generator().manual_seed(0)
    h, C, q = torch.randn(3, 2, 5, generator=g), torch.randn(7, 5, generator=g), torch.rand(3, 7, generator=g)
    slow = [-(q[i] * torch.log_softmax(C @ h[i, v] / 0.3, dim=0)).sum() for i in range(3) for v in range(2)]
    torch.testing.assert_close(class_cross_entropy(h, C, q, 0.3), torch.stack(slow).mean())
