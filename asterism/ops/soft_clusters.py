"""Soft assignments of embeddings to clusters: how well two networks agree, and how evenly the clusters are filled.

An embedding h belongs to cluster k with probability p_k = softmax(C h / τ − o)_k, where the rows of C are the clusters'
prototypes. Tables of n embeddings × k clusters are computed a few rows at a time and freed; the backward pass
recomputes them from one number per row, the logsumexp. With a the gradient of the mean cross-entropy and g that of the
mean probability, both divided by n, the gradient with respect to a row's scaled logits is

    p ∘ (a + g − ⟨g, p⟩) − a q        where q is the teacher's distribution.

>>> prototypes = torch.eye(3)
>>> student = Assignments(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], requires_grad=True), prototypes, 0.1)
>>> teacher = Assignments(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), prototypes, 0.1)
>>> found = agreement(student, teacher)  # correct in the first row, confidently wrong in the second
>>> round(float(found.cross_entropy.detach()), 2)
5.0
>>> uniform = torch.full((3,), 1 / 3)
>>> round(float(divergence(found.mean_probability, uniform.log()).detach()), 2)  # the third cluster is empty
0.4

The prior π is the share of the data that each of K clusters should hold (FLSL, equation 9).

>>> prior_shares(None, 4).tolist()
[0.25, 0.25, 0.25, 0.25]
>>> prior_shares(PowerLaw(exponent=1.0), 4).mul(25).round().tolist()
[12.0, 6.0, 4.0, 3.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.config import Config
from asterism.ops import collectives
from asterism.ranges import NonNegative, Share

_CHUNK = 1 << 20  # logits per chunk and network: 4 MiB, which fits caches and suits matrix products


@dataclass(frozen=True)
class Assignments:
    """Distributions over clusters, softmax(prototypes · embedding / temperature − offset), not computed yet."""

    embeddings: Float[Tensor, "n p"]
    prototypes: Float[Tensor, "k p"]
    temperature: float
    offset: Float[Tensor, " k"] | None = None


@dataclass(frozen=True)
class Agreement:
    """The result of `agreement`; the entropies, in nats, are for monitoring and have no gradient."""

    cross_entropy: Float[Tensor, ""]  # −mean Σ_k q_k log p_k
    mean_probability: Float[Tensor, " k"]  # mean p of this process's rows
    target_entropy: Float[Tensor, ""]  # mean entropy of q
    prediction_entropy: Float[Tensor, ""]  # mean entropy of p


def agreement(student: Assignments, teacher: Assignments, weights: Float[Tensor, " n"] | None = None) -> Agreement:
    """Cross-entropy of the student's distributions p against the teacher's q, and the mean of p. All in float32.

    weights: of the rows in all sums, which are divided by n whatever the weights; None: all are 1.
    Gradients reach the student's embeddings and prototypes, through both results; the teacher is a constant.
    """
    assert len(student.embeddings) == len(teacher.embeddings), "one target per row"
    assert student.offset is None, "an offset is for targets"
    with torch.autocast(student.embeddings.device.type, enabled=False):
        cross_entropy, mean, target_entropy, prediction_entropy = _Agreement.apply(
            student.embeddings.float(), student.prototypes.float(), student.temperature, _constant(teacher), weights
        )
    return Agreement(cross_entropy, mean, target_entropy, prediction_entropy)


@dataclass(frozen=True)
class Comparison:
    """Sums over rows; the entropies are for monitoring and have no gradient."""

    cross_entropy: Float[Tensor, ""]  # −Σ_rows Σ_k q_k log p_k
    target_entropy: Float[Tensor, ""]
    prediction_entropy: Float[Tensor, ""]


def summed_agreement(student: Assignments, teacher: Assignments, weights: Float[Tensor, " n"]) -> Comparison:
    """The weighted sums behind the means of `agreement`, for any number of rows.

    Without rows they are zero, and the student's embeddings and prototypes get zero gradients.
    """
    n = len(student.embeddings)
    if n == 0:
        nothing = 0.0 * (student.embeddings.sum() + student.prototypes.sum())
        return Comparison(nothing, nothing.detach(), nothing.detach())
    mean = agreement(student, teacher, weights)
    return Comparison(n * mean.cross_entropy, n * mean.target_entropy, n * mean.prediction_entropy)


def divergence(mean: Float[Tensor, " k"], log_prior: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """KL(mean ‖ prior): 0 if clusters are filled as the prior says; ln K if one takes all under a uniform prior."""
    tiny = torch.finfo(mean.dtype).tiny
    return (mean * (mean.clamp_min(tiny).log() - log_prior)).sum()


@torch.no_grad()
def balancing_offset(assignments: Assignments) -> Float[Tensor, " k"]:
    """The offset that lets each cluster's probabilities compete over the rows of all processes.

    A softmax over the batch divides each cluster's exponentials by their sum Z_k; a subsequent softmax over clusters
    makes every row a distribution again: softmax(C h/τ − log Z). This is one round of the Sinkhorn–Knopp algorithm.
    """
    with torch.autocast(assignments.embeddings.device.type, enabled=False):
        fixed = _constant(assignments)
        sums = [_scaled_logits(fixed, rows).logsumexp(dim=0) for rows in _chunks(fixed)]
        own = torch.stack(sums).logsumexp(dim=0)
        largest = collectives.all_reduce_max(own)
        return largest + collectives.all_reduce_sum((own - largest).exp()).log()


class _Agreement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        prototypes: Tensor,
        temperature: float,
        teacher: Assignments,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        student = Assignments(embeddings, prototypes, temperature)
        n, k = len(embeddings), len(prototypes)
        cross_entropy, entropy, target_entropy = embeddings.new_zeros(3).unbind()
        total = embeddings.new_zeros(k)
        normalisers = embeddings.new_empty(2, n)
        for rows in _chunks(student):
            log_p, normalisers[0, rows] = _log_probabilities(student, rows)
            log_q, normalisers[1, rows] = _log_probabilities(teacher, rows)
            q = log_q.exp()
            weight = None if weights is None else weights[rows]
            cross_entropy -= _dot(q, log_p, weight)
            target_entropy -= _dot(q, log_q, weight)
            p = torch.exp(log_p, out=q)
            entropy -= _dot(p, log_p, weight)
            total += p.sum(dim=0) if weight is None else weight @ p
        ctx.save_for_backward(embeddings, prototypes, normalisers, teacher.embeddings, teacher.prototypes)
        ctx.temperature, ctx.teacher, ctx.weights = temperature, (teacher.temperature, teacher.offset), weights
        results = cross_entropy / n, total / n, target_entropy / n, entropy / n
        ctx.mark_non_differentiable(*results[2:])
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        embeddings, prototypes, normalisers, *fixed = ctx.saved_tensors
        student, teacher = Assignments(embeddings, prototypes, ctx.temperature), Assignments(*fixed, *ctx.teacher)
        a, g = gradients[0] / len(embeddings), gradients[1] / len(embeddings)
        grad_embeddings, grad_prototypes = torch.empty_like(embeddings), torch.zeros_like(prototypes)
        for rows in _chunks(student):
            p = _scaled_logits(student, rows).sub_(normalisers[0, rows, None]).exp_()
            q = _scaled_logits(teacher, rows).sub_(normalisers[1, rows, None]).exp_()
            along = p @ g
            push = q.mul_(-a).addcmul_(p, a + g).addcmul_(p, along[:, None], value=-1)
            torch.mm(push, prototypes, out=grad_embeddings[rows])
            own = embeddings[rows]
            if ctx.weights is not None:
                grad_embeddings[rows] *= ctx.weights[rows, None]
                own = own * ctx.weights[rows, None]
            grad_prototypes.addmm_(push.T, own)
        return grad_embeddings.div_(ctx.temperature), grad_prototypes.div_(ctx.temperature), None, None, None


def _log_probabilities(assignments: Assignments, rows: slice) -> tuple[Float[Tensor, "rows k"], Float[Tensor, " rows"]]:
    """Logarithms of the probabilities of some rows, and the logsumexp that was subtracted."""
    logits = _scaled_logits(assignments, rows)
    first = logits[:, 0].clone()
    normalised = torch.log_softmax(logits, dim=1)
    return normalised, first - normalised[:, 0]


def _scaled_logits(assignments: Assignments, rows: slice) -> Float[Tensor, "rows k"]:
    scaled = assignments.embeddings[rows] / assignments.temperature
    if assignments.offset is None:
        return scaled @ assignments.prototypes.T
    return torch.addmm(assignments.offset, scaled, assignments.prototypes.T, beta=-1)


def _chunks(assignments: Assignments) -> Iterator[slice]:
    step = max(1, _CHUNK // len(assignments.prototypes))
    for start in range(0, len(assignments.embeddings), step):
        yield slice(start, start + step)


def _dot(left: Tensor, right: Tensor, weight: Tensor | None) -> Tensor:
    dots = torch.linalg.vecdot(left, right)
    return (dots if weight is None else dots * weight).sum()


def _constant(assignments: Assignments) -> Assignments:
    return Assignments(
        assignments.embeddings.detach().float(),
        assignments.prototypes.detach().float(),
        assignments.temperature,
        assignments.offset,
    )


class PowerLaw(Config):
    """A prior whose k-th cluster has a share proportional to k^(−exponent): few large clusters, many small ones."""

    exponent: NonNegative = 0.25


Prior = tuple[Share, ...] | PowerLaw | None  # K shares that sum to 1, or a rule; None: all equal


def check_prior(prior: Prior, clusters: int) -> None:
    """Raise if the given shares are not a distribution over the clusters."""
    if not isinstance(prior, tuple):
        return
    if len(prior) != clusters:
        raise ValueError(f"prior has {len(prior)} shares for out_dim = {clusters} clusters; give one each")
    if min(prior) <= 0:
        raise ValueError(f"prior contains {min(prior)}; every cluster needs a share above 0")
    total = math.fsum(prior)
    if abs(total - 1) > 1e-4:
        raise ValueError(f"the shares of prior sum to {total:.6g}; they must sum to 1: divide each by {total:.6g}")


def prior_shares(prior: Prior, clusters: int) -> Float[Tensor, " k"]:
    """π as numbers that sum to 1, in double precision."""
    if isinstance(prior, tuple):
        return torch.tensor(prior, dtype=torch.float64)
    exponent = prior.exponent if prior is not None else 0.0
    shares = torch.arange(1, clusters + 1, dtype=torch.float64) ** -exponent
    return shares / shares.sum()
