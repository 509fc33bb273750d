"""STELLAR's concept alignment: balanced targets, the matching σ, and the two cross-entropies (equations 6 to 11).

Concepts are unordered sets of r tokens. Those of one view provide the targets: each is assigned to prototypes so that
all prototypes are used equally often (q̃). Those of other views of the same image are matched with them (σ) and must
predict the target of their match.

    S, S'      tokens of the view that provides targets, and of the views that predict them
    h, C       projected tokens on the unit sphere, and prototypes of any length in the same space      (eq. 6)
    q          softmax(C h / τ), the prediction; never formed, see `ops.prototype_alignment`            (eq. 7)
    q̃          sinkhorn_knopp(C h / τ̃), the target                                                      (eq. 8)
    Θ, P, σ    distances of S' to S, their transport plan, and σ(j') = argmax_j P[j', j]               (eq. 9, 10)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.config import Config
from asterism.ops import assignment
from asterism.ops.losses import entropy
from asterism.ops.prototype_alignment import prototype_cross_entropy
from asterism.ranges import Few, Positive, Temperature


class AlignmentConfig(Config):
    """Temperatures divide logits. Targets are sharper than predictions, although the paper prints τ̃ > τ."""

    target_temp: Temperature = 0.06  # τ̃
    prediction_temp: Temperature = 0.12  # τ
    sinkhorn_iterations: Few = 3
    matching: Literal["transport", "hungarian"] = "transport"  # entropic and parallel, or exact and slow (table 12)
    match_epsilon: Positive = 0.1  # ε
    match_iterations: Few = 5


@dataclass(frozen=True)
class Concepts:
    """Concept tokens and their projections h(S), which are unit vectors."""

    S: Float[Tensor, "*views r d"]
    h: Float[Tensor, "*views r p"]


@dataclass(frozen=True)
class Alignment:
    """Both losses, with the targets and matchings behind them."""

    cluster: Float[Tensor, ""]  # cross-entropy of the clean view (eq. 8)
    align: Float[Tensor, ""] | None  # cross-entropy of the masked views (eq. 11); None if there are none
    q_tilde: Float[Tensor, "b r k"]
    sigma_clean: Int[Tensor, "b 1 r"]  # each concept itself, unless a teacher provided the targets
    sigma: Int[Tensor, "b v r"] | None  # of the masked views

    @torch.no_grad()
    def usage(self) -> dict[str, Float[Tensor, ""]]:
        """For monitoring: entropy of the targets in nats, the number of distinct prototypes preferred, per
        token, and the share of an image's concepts matched by some concept of a view, 1 when σ is one-to-one."""
        preferred = self.q_tilde.argmax(dim=-1)
        used = self.q_tilde.new_zeros(self.q_tilde.shape[-1]).scatter_(0, preferred.flatten(), 1.0)
        usage = {"target_entropy": entropy(self.q_tilde), "prototypes_in_use": used.sum() / preferred.numel()}
        if self.sigma is not None:
            reached = torch.zeros(self.sigma.shape, device=self.sigma.device).scatter_(2, self.sigma, 1.0)
            usage["matched"] = reached.mean()
        return usage


def align_concepts(
    clean: Concepts,
    masked: Concepts | None,
    C: Float[Tensor, "k p"],
    config: AlignmentConfig = AlignmentConfig(),  # noqa: B008 (frozen)
    teacher: tuple[Concepts, Float[Tensor, "k p"]] | None = None,
) -> Alignment:
    """Cluster the concepts of clean views [b, r, ·], and align those of masked views [b, v, r, ·] with them.

    With a `teacher` (its concepts of the images and its own prototypes), the targets come from it; the clean view's
    concepts are then matched with the teacher's too. Gradients reach h and C through both losses, never through q̃, σ
    or S.

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> _ = torch.manual_seed(0)
    >>> S = torch.randn(2, 3, 8)  # two images of three concepts
    >>> S_masked = S[:, None, [2, 0, 1]]  # one masked view of each, its concepts in another order
    >>> C = torch.randn(6, 8)
    >>> clean, masked = (Concepts(tokens, normalize(tokens, dim=-1)) for tokens in (S, S_masked))
    >>> alignment = align_concepts(clean, masked, C)
    >>> alignment.sigma[0].tolist()
    [[2, 0, 1]]
    >>> torch.allclose(alignment.q_tilde.sum(dim=-1), torch.ones(2, 3))
    True
    >>> torch.allclose(alignment.cluster, alignment.align)  # the same concepts, recognised in any order
    True
    """
    if teacher is None:
        S, q_tilde = clean.S, balanced_targets(clean.h, C, config)
        sigma_clean = torch.arange(S.shape[1], device=S.device).expand(len(S), 1, -1)
    else:
        S, q_tilde = teacher[0].S, balanced_targets(teacher[0].h, teacher[1], config)
        sigma_clean = match_concepts(clean.S[:, None], S, config)
    cluster = matched_cross_entropy(clean.h[:, None], C, q_tilde, sigma_clean, config.prediction_temp)
    if masked is None:
        return Alignment(cluster, None, q_tilde, sigma_clean, None)
    sigma = match_concepts(masked.S, S, config)
    align = matched_cross_entropy(masked.h, C, q_tilde, sigma, config.prediction_temp)
    return Alignment(cluster, align, q_tilde, sigma_clean, sigma)


@torch.no_grad()
def balanced_targets(
    h: Float[Tensor, "*rows p"],
    C: Float[Tensor, "k p"],
    config: AlignmentConfig = AlignmentConfig(),  # noqa: B008
) -> Float[Tensor, "*rows k"]:
    """q̃ of projected tokens: prototypes are balanced over the rows of all processes. No gradient (eq. 8)."""
    with torch.autocast(h.device.type, enabled=False):  # rounding to bfloat16 would change 1.5 % of the largest logits
        logits = h.float().flatten(0, -2) @ C.float().T
    q_tilde = assignment.sinkhorn_knopp(logits, config.target_temp, config.sinkhorn_iterations)
    return q_tilde.view(*h.shape[:-1], len(C))


@torch.no_grad()
def match_concepts(
    S_masked: Float[Tensor, "b v r d"],
    S: Float[Tensor, "b r d"],
    config: AlignmentConfig = AlignmentConfig(),  # noqa: B008
) -> Int[Tensor, "b v r"]:
    """σ: for each token of each view, the matching token of the same image (eq. 9 and 10)."""
    if config.matching == "hungarian":
        return assignment.hungarian(assignment.distances(S_masked, S[:, None]))
    # Differs from the paper: the plan's marginals are 1, not 1/r, as in the published code; the argmax is the same.
    return assignment.match(S_masked, S[:, None], config.match_epsilon, config.match_iterations)


def matched_cross_entropy(
    h: Float[Tensor, "b v r p"],
    C: Float[Tensor, "k p"],
    q_tilde: Float[Tensor, "b t k"],
    sigma: Int[Tensor, "b v r"],
    tau: float,
) -> Float[Tensor, ""]:
    """Mean over images, views and tokens of −Σ_k q̃_σ(j),k log softmax(C h_j / τ)_k (eq. 8 and 11)."""
    images, tokens = q_tilde.shape[:2]
    first_row = tokens * torch.arange(images, device=sigma.device)  # of each image, in the table of all targets
    which = (first_row[:, None, None] + sigma).flatten()
    return prototype_cross_entropy(h.flatten(0, 2), C, q_tilde.flatten(0, 1), which, tau)


def class_cross_entropy(
    h: Float[Tensor, "b v p"], C: Float[Tensor, "k p"], q_tilde: Float[Tensor, "b k"], tau: float
) -> Float[Tensor, ""]:
    """`matched_cross_entropy` of class tokens: an image has one, so there is nothing to match."""
    only = torch.zeros(*h.shape[:2], 1, dtype=torch.int64, device=h.device)
    return matched_cross_entropy(h[:, :, None], C, q_tilde[:, None], only, tau)
