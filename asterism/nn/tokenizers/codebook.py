"""A codebook of unit vectors that follows the latents assigned to it (van den Oord et al., 2017, appendix A)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.ops import collectives
from asterism.ops.host import sent

_SPARES = 64  # codes that can be replaced in one update
_LAST = torch.iinfo(torch.int64).max


class Codebook(nn.Module):
    """Each code is the running mean of the latents nearest to it; an unused code is replaced by a latent.

    Counts and sums of all micro-batches and processes enter one update. Keys determine which latents replace unused
    codes, so the choice does not depend on how a batch is divided over processes.
    """

    codes: Float[Tensor, "k c"]
    count: Float[Tensor, " k"]
    total: Float[Tensor, "k c"]
    new_count: Float[Tensor, " k"]
    new_total: Float[Tensor, "k c"]
    spare_keys: Int[Tensor, " s"]
    spares: Float[Tensor, "s c"]

    def __init__(self, vocabulary: int, dim: int) -> None:
        super().__init__()
        codes = F.normalize(torch.randn(vocabulary, dim), dim=-1)
        self.register_buffer("codes", codes)
        self.register_buffer("count", torch.ones(vocabulary))
        self.register_buffer("total", codes.clone())
        self.register_buffer("new_count", torch.zeros(vocabulary), persistent=False)
        self.register_buffer("new_total", torch.zeros(vocabulary, dim), persistent=False)
        self.register_buffer("spare_keys", torch.full((_SPARES,), _LAST), persistent=False)
        self.register_buffer("spares", torch.zeros(_SPARES, dim), persistent=False)

    @torch.no_grad()
    def nearest(self, latents: Float[Tensor, "*rows c"]) -> Int[Tensor, "*rows"]:
        """The nearest code of each unit vector."""
        with torch.autocast(latents.device.type, enabled=False):
            return (latents.float() @ self.codes.T).argmax(dim=-1)

    @torch.no_grad()
    def accumulate(
        self, latents: Float[Tensor, "rows c"], chosen: Int[Tensor, " rows"], keys: Int[Tensor, " rows"]
    ) -> None:
        """Keep a micro-batch until the next update. `keys` are random and different for all latents of a batch."""
        self.new_count.index_add_(0, chosen, torch.ones_like(chosen, dtype=self.new_count.dtype))
        self.new_total.index_add_(0, chosen, latents.float())
        self._keep_spares(
            torch.cat([self.spare_keys, sent(keys, latents.device)]), torch.cat([self.spares, latents.float()])
        )

    @torch.no_grad()
    def update(self, momentum: float, revive_below: float) -> None:
        """Move the codes; those whose running count is below `revive_below` latents per step are replaced."""
        self.count.lerp_(collectives.all_reduce_sum(self.new_count), 1 - momentum)
        self.total.lerp_(collectives.all_reduce_sum(self.new_total), 1 - momentum)
        self._keep_spares(collectives.all_gather_rows(self.spare_keys), collectives.all_gather_rows(self.spares))
        unused = self.count < revive_below
        spare = unused.cumsum(0) - 1  # each unused code takes the next one, while there are any
        revived = unused & (spare < (self.spare_keys < _LAST).sum())
        self.total.copy_(torch.where(revived[:, None], self.spares[spare.clamp(0, _SPARES - 1)], self.total))
        self.count.masked_fill_(revived, 1.0)
        self.codes.copy_(F.normalize(self.total, dim=-1))
        self.new_count.zero_()
        self.new_total.zero_()
        self.spare_keys.fill_(_LAST)

    def _keep_spares(self, keys: Int[Tensor, " rows"], latents: Float[Tensor, "rows c"]) -> None:
        order = keys.argsort()[:_SPARES]
        self.spare_keys.copy_(keys[order])
        self.spares.copy_(latents[order])
