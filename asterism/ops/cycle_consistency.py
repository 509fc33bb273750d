"""Reliable neighbours across images: cycles through two aligned memories (CrIBo, equations 2 to 4).

Row s of the memories M_1 and M_2 is one object as seen in two views of an image; row m of c_1 and c_2 is one object of
the batch. From c_1^m, go to its nearest row of M_1, jump to the same row of M_2, and from there to the nearest row of
c_2. If that is object m again, the two objects are neighbours regardless of the augmentations.

>>> M = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 1.0]]])  # the second object turns
>>> c = torch.tensor([[[2.0, 0.1], [0.1, 2.0], [0.2, 3.0]], [[2.0, 0.1], [2.0, 1.5], [0.0, 3.0]]])
>>> nn = torch.stack([most_similar_row(c[i], M[i]) for i in (0, 1)])  # nn(c_i, M_i)
>>> nn.tolist()
[[0, 1, 1], [0, 1, 1]]
>>> closes_cycle(nn, c, M).tolist()
[[True, True, False], [True, True, False]]
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.ops.neighbours import most_similar_row


@torch.no_grad()
def closes_cycle(
    nn: Int[Tensor, "2 m"],
    c: Float[Tensor, "2 n d"],
    M: Float[Tensor, "2 s d"],
    start: Int[Tensor, " m"] | None = None,
    among: Bool[Tensor, " n"] | None = None,
) -> Bool[Tensor, "2 m"]:
    """𝒪(c): whether the cycle through the other view returns to each object (eq. 4).

    nn: the row of M that each object found in its own view; −1 where there is none, which never closes.
    start: the rows of c that searched; by default all of c, in order.
    among: the rows of c that a cycle may end at; by default all.
    """
    start = torch.arange(c.shape[1], device=c.device) if start is None else start
    closed = []
    for i, j in ((0, 1), (1, 0)):
        jump = M[j][nn[i].clamp_min(0)].float()
        closed.append((most_similar_row(jump, c[j], among=among) == start) & (nn[i] >= 0))
    return torch.stack(closed)
