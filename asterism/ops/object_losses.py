"""Object losses: targets from the other view, and from neighbours in other images (CrIBo, section 3.2.3).

With h the projections of objects, W the prototypes and H the cross-entropy,

    p_{i,s} = softmax(W_s h_{i,s}/τ_s)        p_{i,t} = softmax((W_t h_{i,t} − centre)/τ_t)        (eq. 5, 7)
    L_cv = ½ · 1/K Σ_k H(p_{1,t}^k, p_{2,s}^k) + H(p_{2,t}^k, p_{1,s}^k)                           (eq. 6, halved)
    L_ci = ½ · 1/Z_1 Σ_k 1_O H(p̃_{1,t}^k, p_{2,s}^k) + ½ · 1/Z_2 Σ_k 1_O H(p̃_{2,t}^k, p_{1,s}^k)  (eq. 8, halved)

where p̃ is p_t of an object's neighbour and Z_i counts the objects of view i whose neighbour is accepted.

>>> W, centre = torch.eye(3), torch.zeros(3)
>>> p = ObjectSoftmax(W, W, centre, τ_s=0.1, τ_t=0.05)
>>> h_t = torch.tensor([[[1.0, 0, 0], [0, 1, 0]], [[1.0, 0, 0], [0, 0, 1]]])  # views disagree about the second object
>>> h_s = h_t.clone().requires_grad_()
>>> round(float(object_loss(p, h_s, h_t).cross_entropy.detach()), 2)
5.0
>>> accepted = torch.tensor([[True, False], [False, False]])
>>> h_nn = [h_t[0, :1], h_t[1, :0]]  # one neighbour, equal to the object that found it
>>> float(neighbour_loss(p, h_s, h_nn, accepted).detach()) < 0.01
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from asterism.ops.object_means import ObjectBatch, mean_of_objects, objects_in_batch
from asterism.ops.soft_clusters import Assignments, Comparison, summed_agreement

Counts = Literal["own", "first"]  # divide by Z_1 and Z_2 (eq. 8), or both directions by Z_1


@dataclass(frozen=True)
class ObjectSoftmax:
    """From projections to p: prototypes, centre and temperatures of student and teacher."""

    W_s: Float[Tensor, "k p"]
    W_t: Float[Tensor, "k p"]
    center: Float[Tensor, " k"]
    τ_s: float
    τ_t: float

    def student(self, h: Float[Tensor, "n p"]) -> Assignments:
        return Assignments(h, self.W_s, self.τ_s)

    def teacher(self, h: Float[Tensor, "n p"]) -> Assignments:
        return Assignments(h, self.W_t, self.τ_t, offset=self.center / self.τ_t)


def object_loss(
    p: ObjectSoftmax, h_s: Float[Tensor, "2 m p"], h_t: Float[Tensor, "2 m p"], batch: ObjectBatch = "process"
) -> Comparison:
    """L_cv: views 1, 2 of the student against views 2, 1 of the teacher, with the mean entropies of both."""
    H = summed_agreement(p.student(h_s.flatten(0, 1)), p.teacher(h_t.flip(0).flatten(0, 1)))
    K = objects_in_batch(torch.tensor(h_s.shape[1], device=h_s.device), batch)
    return Comparison(
        mean_of_objects(H.cross_entropy, K, batch) / 2,
        mean_of_objects(H.target_entropy, K, batch) / 2,
        mean_of_objects(H.prediction_entropy, K, batch) / 2,
    )


def neighbour_loss(
    p: ObjectSoftmax,
    h_s: Float[Tensor, "2 m p"],
    h_nn: Sequence[Float[Tensor, "_ p"]],
    accepted: Bool[Tensor, "2 m"],
    batch: ObjectBatch = "process",
    counts: Counts = "own",
) -> Float[Tensor, ""]:
    """L_ci; `h_nn` are the projections of the accepted neighbours (O) of each view."""
    O_1, O_2 = accepted
    H_1 = summed_agreement(p.student(h_s[1][O_1]), p.teacher(h_nn[0])).cross_entropy
    H_2 = summed_agreement(p.student(h_s[0][O_2]), p.teacher(h_nn[1])).cross_entropy
    Z_1, Z_2 = objects_in_batch(accepted.sum(dim=1), batch)
    if counts == "first":
        Z_2 = Z_1
    return (mean_of_objects(H_1, Z_1, batch) + mean_of_objects(H_2, Z_2, batch)) / 2
