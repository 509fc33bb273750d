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

A batch is divided over processes and micro-batches, and the losses of the parts are averaged. `ObjectBatch` is
"process": the mean of each part's own objects; or "all": the mean over the objects of all processes, regardless of how
the images are divided.

>>> totals, count = torch.tensor(6.0), torch.tensor(4)
>>> float(mean_of_objects(totals, objects_in_batch(count, "all"), "all"))
1.5
>>> float(mean_of_objects(torch.tensor(0.0), torch.tensor(0), "process"))
0.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.ops.collectives import all_gather_ragged_rows, all_gather_rows, all_reduce_sum, rank, world_size
from asterism.ops.host import present
from asterism.ops.soft_clusters import Assignments, Comparison, summed_agreement

ObjectBatch = Literal["process", "all"]


def objects_in_batch(counts: Int[Tensor, "*n"], batch: ObjectBatch) -> Int[Tensor, "*n"]:
    """The counts of this process, or their sums over all."""
    return all_reduce_sum(counts) if batch == "all" else counts


def mean_of_objects(total: Float[Tensor, ""], count: Int[Tensor, ""], batch: ObjectBatch) -> Float[Tensor, ""]:
    """This process's total divided by the count of the batch; zero if the count is zero.

    If the count is over all processes, the result is scaled so that its average over processes is the mean.
    """
    processes = world_size() if batch == "all" else 1
    return total * (count > 0) * processes / count.clamp_min(1)


def gather_objects(
    objects: Float[Tensor, "v m d"], valid: Bool[Tensor, " m"], batch: ObjectBatch
) -> tuple[Float[Tensor, "v n d"], Bool[Tensor, " n"], Int[Tensor, " m"]]:
    """The objects of the batch, without gradient, which are valid, and the places of this process's own among them."""
    own = torch.arange(objects.shape[1], device=objects.device)
    if batch == "process":
        return objects.detach(), valid, own
    # On a device every process has the same number, see `present`.
    gather = all_gather_ragged_rows if objects.device.type == "cpu" else all_gather_rows
    before = all_gather_rows(own.new_full((1,), len(own)))[: rank()].sum()
    return gather(objects.transpose(0, 1)).transpose(0, 1), gather(valid), before + own


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
    p: ObjectSoftmax,
    h_s: Float[Tensor, "2 m p"],
    h_t: Float[Tensor, "2 m p"],
    batch: ObjectBatch = "process",
    valid: Bool[Tensor, " m"] | None = None,
) -> Comparison:
    """L_cv: views 1, 2 of the student against views 2, 1 of the teacher, with the mean entropies of both.

    valid: the rows that are objects; by default all.
    """
    if valid is None:
        valid = torch.ones(h_s.shape[1], dtype=torch.bool, device=h_s.device)
    H = summed_agreement(p.student(h_s.flatten(0, 1)), p.teacher(h_t.flip(0).flatten(0, 1)), valid.repeat(2).float())
    K = objects_in_batch(valid.sum(), batch)
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
    """L_ci; `h_nn` are the projections of the neighbours of each view, at the places `present` in O."""
    O_1, O_2 = accepted
    i_1, i_2 = present(O_1), present(O_2)
    H_1 = summed_agreement(p.student(h_s[1][i_1]), p.teacher(h_nn[0]), O_1[i_1].float()).cross_entropy
    H_2 = summed_agreement(p.student(h_s[0][i_2]), p.teacher(h_nn[1]), O_2[i_2].float()).cross_entropy
    Z_1, Z_2 = objects_in_batch(accepted.sum(dim=1), batch)
    if counts == "first":
        Z_2 = Z_1
    return (mean_of_objects(H_1, Z_1, batch) + mean_of_objects(H_2, Z_2, batch)) / 2
