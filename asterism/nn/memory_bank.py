"""A memory of embeddings: the newest rows of all processes, first in, first out."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.ops.collectives import all_gather_fields
from asterism.ops.host import sent
from asterism.ops.precision import at_least_float32


class Memory(nn.Module):
    """A ring of unit vectors, the same on every process.

    Until `filled` reaches the size, the other rows are the initial random unit vectors. They can be drawn like any
    other row, so there are always enough. Random rows do no harm, since student and teacher are compared with the
    same rows.
    """

    rows: Float[Tensor, "n d"]
    pointer: Int[Tensor, ""]  # index of the next row to overwrite
    filled: Int[Tensor, ""]  # number of rows that came from images

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("pointer", torch.tensor(0))
        self.register_buffer("filled", torch.tensor(0))
        # Not a buffer: empty between optimiser steps, when checkpoints are written.
        self._pending: list[tuple[Tensor, Tensor]] = []

    @property
    def size(self) -> int:
        return len(self.rows)

    @property
    def filled_share(self) -> Float[Tensor, ""]:
        return self.filled / self.size

    def sample(self, count: int, generator: torch.Generator) -> Int[Tensor, " {count}"]:
        """Distinct row indices, drawn uniformly. The same generator on every process gives the same indices."""
        return sent(torch.randperm(self.size, generator=generator)[:count], self.rows.device)

    @torch.no_grad()
    def collect(self, rows: Float[Tensor, "b d"], keys: Int[Tensor, " b"]) -> None:
        """Keep the rows of a micro-batch until `store`; `keys` are the random keys of their images."""
        self._pending.append((at_least_float32(rows.detach()), sent(keys, rows.device)))

    @torch.no_grad()
    def store(self) -> None:
        """Push the rows all processes collected since the last call.

        Rows are stored in the order of their keys, so the memory does not depend on how a batch was divided.
        """
        rows, keys = all_gather_fields(*map(torch.cat, zip(*self._pending, strict=True)))
        self._pending = []
        self.push(rows[keys.argsort(stable=True)])

    @torch.no_grad()
    def push(self, rows: Float[Tensor, "b d"]) -> None:
        """Overwrite the oldest rows with any number of new ones."""
        places = (self.pointer + torch.arange(len(rows), device=rows.device)) % self.size
        newest = slice(max(0, len(rows) - self.size), None)  # if there are more rows than the memory holds
        self.rows[places[newest]] = rows[newest].to(self.rows.dtype)
        self.pointer.copy_((self.pointer + len(rows)) % self.size)
        self.filled.copy_((self.filled + len(rows)).clamp_max(self.size))
