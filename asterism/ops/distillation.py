"""Distances between a student's tokens and a teacher's, and a student's similarities to a queue of teacher embeddings.

Arithmetic is in float32. Gradients reach the student alone: targets are detached.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from asterism.ops.compilable import compilable
from asterism.ops.losses import cross_entropy
from asterism.ops.precision import at_least_float32

Distance = Literal["cosine", "mse"]


@compilable
def token_distance(
    student: Float[Tensor, "*rows d"], teacher: Float[Tensor, "*rows d"], distance: Distance
) -> Float[Tensor, "*rows"]:
    """cosine: 1 − ⟨s, t⟩/(|s| |t|); mse: |s − t|²/d.

    >>> s, t = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    >>> round(float(token_distance(s, t, "cosine")), 4), float(token_distance(s, t, "mse"))
    (0.04, 1.0)
    """
    s, t = at_least_float32(student), at_least_float32(teacher.detach())
    if distance == "cosine":
        return 1 - F.cosine_similarity(s, t, dim=-1)
    return (s - t).square().mean(dim=-1)


@torch.no_grad()
def resample_tokens(
    tokens: Float[Tensor, "b n d"], old: tuple[int, int], new: tuple[int, int]
) -> Float[Tensor, "b m d"]:
    """Patch tokens of a grid on another one over the same image: bilinear, antialiased where the new one is coarser.

    >>> resample_tokens(torch.tensor([[[0.0], [2.0], [4.0], [6.0]]]), (2, 2), (1, 1)).flatten()
    tensor([3.])
    """
    if old == new:
        return tokens.detach()
    picture = at_least_float32(tokens).mT.reshape(len(tokens), -1, *old)
    return F.interpolate(picture, new, mode="bilinear", antialias=True).flatten(2).mT


def queue_similarities(
    embeddings: Float[Tensor, "b d"], queue: Float[Tensor, "k d"], own: Float[Tensor, "b d"] | None
) -> Float[Tensor, "b c"]:
    """Cosines of unit vectors with the rows of the queue, and last, if given, with the image's own row."""
    rows = embeddings @ queue.T
    return rows if own is None else torch.cat([rows, (embeddings * own).sum(dim=-1, keepdim=True)], dim=-1)


def queue_distillation(
    student: Float[Tensor, "b d"],
    teacher: Float[Tensor, "b d"],
    queue: Float[Tensor, "k d"],
    *,
    teacher_temp: float,
    student_temp: float,
    own_target: bool,
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b c"]]:
    """−Σ_j p_T,j log p_S,j of every image, and p_T.

    With z = t/|t|, y = s/|s| and the unit rows of Q (the queue and, if `own_target`, z itself as the last row),
    p_T = softmax(Q z/τ_T), without gradient, and p_S = softmax(Q y/τ_S).
    """
    with torch.autocast(student.device.type, enabled=False):
        y = F.normalize(at_least_float32(student), dim=-1)
        z = F.normalize(at_least_float32(teacher.detach()), dim=-1)
        own = z if own_target else None
        targets = (queue_similarities(z, queue, own) / teacher_temp).softmax(dim=-1)
        return cross_entropy(targets, queue_similarities(y, queue, own), student_temp), targets
