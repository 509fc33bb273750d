"""How far embeddings are spread: the two numbers that fall when a representation collapses."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize


class SpreadWindow:
    """The newest `rows` embeddings: the rank of a single small batch is bounded by the batch size."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[Tensor] = []

    def add(self, embeddings: Float[Tensor, "b d"]) -> None:
        self._parts.append(embeddings.detach())
        while sum(map(len, self._parts[1:])) >= self._rows:
            del self._parts[0]

    @property
    def newest(self) -> Float[Tensor, "b d"]:
        """What is measured; a window of the same size to which this is added continues like this one."""
        return torch.cat(self._parts)[-self._rows :]

    @property
    def is_full(self) -> bool:
        """Whether ranks are comparable: once full, all are measured on the same number of rows."""
        return sum(map(len, self._parts)) >= self._rows

    def measure(self) -> dict[str, float]:
        """Both numbers under the names they are logged with; empty until there are two embeddings."""
        if sum(map(len, self._parts)) < 2:
            return {}
        rows = self.newest
        return {"feature_std": float(feature_std(rows)), "effective_rank": float(effective_rank(rows))}


def feature_std(embeddings: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Mean standard deviation of the L2-normalised embeddings per channel, times √d: 1 when spread over the sphere."""
    unit = normalize(embeddings.float(), dim=1)
    return unit.std(dim=0, correction=0).mean() * embeddings.shape[1] ** 0.5


def effective_rank(embeddings: Float[Tensor, "b d"]) -> Float[Tensor, ""]:
    """Exponential of the entropy of the centred embeddings' singular values as shares (Roy and Vetterli, 2007)."""
    # In float64 on the CPU: some accelerators lack float64 or eigvalsh, and this is small and infrequent.
    rows = embeddings.detach().cpu().double()
    centred = rows - rows.mean(dim=0)
    # The Gram matrix of the shorter side has the squared singular values as its eigenvalues, at a fraction of the cost.
    gram = centred @ centred.T if centred.shape[0] < centred.shape[1] else centred.T @ centred
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    share = values / values.sum().clamp_min(1e-12)
    return torch.exp(-torch.special.xlogy(share, share).sum()).float()
