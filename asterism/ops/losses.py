"""Cross-entropies between a teacher's soft targets and a student's logits, and means over masked patches.

All arithmetic on logits is in float32. With temperature τ and a target q whose entries sum to its mass |q|,

    −Σ_k q_k log softmax(s/τ)_k = |q| · logsumexp(s/τ) − ⟨q, s⟩/τ.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from asterism.ops.compilable import compilable
from asterism.ops.host import sent
from asterism.ops.precision import at_least_float32


@compilable
@torch.no_grad()
def soft_targets(
    logits: Float[Tensor, "*rows k"], center: Float[Tensor, " k"], temperature: float
) -> Float[Tensor, "*rows k"]:
    """softmax((logits − center)/temperature): the teacher's targets. No gradient."""
    return ((at_least_float32(logits) - center) / temperature).softmax(dim=-1)


@compilable
def cross_entropy(
    targets: Float[Tensor, "*rows k"], logits: Float[Tensor, "*rows k"], temperature: float
) -> Float[Tensor, "*rows"]:
    """−Σ_k target_k log softmax(logits/temperature)_k of every row."""
    scaled = at_least_float32(logits) / temperature
    return targets.sum(dim=-1) * scaled.logsumexp(dim=-1) - (targets * scaled).sum(dim=-1)


@compilable
def cross_view_loss(
    targets: Float[Tensor, "t b k"], logits: Float[Tensor, "v b k"], temperature: float
) -> Float[Tensor, ""]:
    """Mean cross-entropy over images and over all pairs of a teacher view and a *different* student view.

    The first t of the v student views are those that the teacher saw. Instead of t(v − 1) cross-entropies of k numbers
    there is one logsumexp per student view, and one product of the summed targets with the summed logits, from which
    the pairs of identical views are subtracted:

        Σ_{i≠j} CE(q_i, s_j) = Σ_j m_j logsumexp(s_j/τ) − (⟨Σ_i q_i, Σ_j s_j⟩ − Σ_i ⟨q_i, s_i⟩)/τ,

    where m_j is the number of teacher views other than j.
    """
    t, v = len(targets), len(logits)
    assert v >= max(t, 2), "every teacher view needs a different student view"
    scaled = at_least_float32(logits) / temperature
    others = torch.full((v, 1), float(t), device=logits.device)
    others[:t] -= 1
    attraction = (targets.sum(dim=0) * scaled.sum(dim=0)).sum(dim=-1) - (targets * scaled[:t]).sum(dim=(0, 2))
    per_image = (others * scaled.logsumexp(dim=-1)).sum(dim=0) - attraction
    return per_image.mean() / (t * (v - 1))


@compilable
@torch.no_grad()
def entropy(probabilities: Float[Tensor, "*rows k"]) -> Float[Tensor, ""]:
    """Mean entropy of the rows in nats, for monitoring."""
    return -(probabilities * probabilities.clamp_min(1e-30).log()).sum(dim=-1).mean()


def masked_rows_mean(values: Float[Tensor, " r"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, ""]:
    """Mean over each image's masked patches, then over images; an image without any counts as zero.

    values: one for each masked patch, in the order of `rows_at`. The mask is on the host.
    """
    share = 1 / mask.sum(dim=1).clamp_min(1).to(values.dtype)
    return (values * sent(share[:, None].expand_as(mask)[mask], values.device)).sum() / len(mask)
