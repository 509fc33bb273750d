"""Between the host and a device that works through a queue of operations: nothing here waits for the queue."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


def sent(tensor: Shaped[Tensor, "*shape"], device: torch.device) -> Shaped[Tensor, "*shape"]:
    """The tensor on a device, which copies it when it gets there.

    Random draws and what follows from them, such as masks, are computed on the host: their numbers and shapes are known
    there, and on a device they would be many small operations.
    """
    return tensor.to(device, non_blocking=device.type != "mps")  # MPS may read the tensor after it was freed


def present(mask: Bool[Tensor, " n"]) -> Int[Tensor, " m"] | slice:
    """The places where a mask is true, to leave out the work for others. On a device, whose number of places the host
    would have to wait for, all of them: so the caller gives the others no weight."""
    return mask.nonzero()[:, 0] if mask.device.type == "cpu" else slice(None)
