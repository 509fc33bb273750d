"""Means over objects, whose number differs from image to image.

A batch is divided over processes and micro-batches, and the losses of the parts are averaged. "process": the mean of
each part's own objects. "all": the mean over the objects of all processes, regardless of how the images are divided.

>>> totals, count = torch.tensor(6.0), torch.tensor(4)
>>> float(mean_of_objects(totals, objects_in_batch(count, "all"), "all"))
1.5
>>> float(mean_of_objects(torch.tensor(0.0), torch.tensor(0), "process"))
0.0
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asterism.ops.collectives import all_gather_ragged_rows, all_gather_rows, all_reduce_sum, rank, world_size

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
    objects: Float[Tensor, "v m d"], batch: ObjectBatch
) -> tuple[Float[Tensor, "v n d"], Int[Tensor, " m"]]:
    """The objects of the batch, without gradient, and the indices of this process's own objects in them."""
    own = torch.arange(objects.shape[1], device=objects.device)
    if batch == "process":
        return objects.detach(), own
    count = torch.tensor([len(own)], device=objects.device)
    before = all_gather_rows(count)[: rank()].sum()
    return all_gather_ragged_rows(objects.transpose(0, 1)).transpose(0, 1), before + own
