"""Muon: orthogonalised momentum for the matrices inside a network, AdamW for everything else.

AdamW scales every weight by itself, so a few dominant directions of the gradient make up most of a matrix's update.
Muon replaces the momentum U S Vᵀ of a matrix by U Vᵀ, which moves all directions equally far (Jordan et al., 2024).
Small networks learn more from the same images this way (docs/results.md).

Updates are scaled to the root mean square of AdamW's, 0.2·√(longer side), so both share learning rate and weight decay
(Liu et al., 2025). Patch embeddings, positions, tokens, norms, biases and prototypes stay with AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from asterism.ops.orthogonal import orthogonalize

_MOMENTUM = 0.95
_ADAM_RMS = 0.2  # root mean square of an update of AdamW, in units of the learning rate


class Muon(torch.optim.Optimizer):
    """The first groups, `adamw`, are updated by AdamW, the others by Muon.

    Each Muon group holds matrices of the same shape, which are orthogonalised together; `parts` is the number of maps
    that are stacked in each of them: 3 in a fused query, key and value.
    """

    def __init__(self, adamw: torch.optim.AdamW, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__([*adamw.param_groups, *groups], defaults={"lr": 0.0, "weight_decay": 0.0})
        self._adamw = adamw
        self._first = len(adamw.param_groups)  # of Muon's groups

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        self._adamw.state = self.state  # one place for checkpoints; `load_state_dict` replaces both
        self._adamw.param_groups = self.param_groups[: self._first]
        loss = self._adamw.step(closure)
        for group in self.param_groups[self._first :]:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update(weights, group["parts"], group["lr"], group["weight_decay"])
        return loss

    def _update(self, weights: list[Tensor], parts: int, lr: float, weight_decay: float) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        momenta = [self._momentum(weight) for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
        ahead = torch.stack(torch._foreach_lerp(gradients, momenta, _MOMENTUM))  # Nesterov's form
        count, rows, columns = ahead.shape
        matrices = _fast(ahead.view(count * parts, rows // parts, columns))
        updates = orthogonalize(matrices).to(ahead.dtype).reshape(count, rows, columns).unbind()
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        torch._foreach_add_(weights, updates, alpha=-lr * _ADAM_RMS * math.sqrt(max(matrices.shape[1:])))

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]


def _fast(matrices: Tensor) -> Tensor:
    """In bfloat16 on a GPU, as published; CPUs rarely multiply it fast."""
    return matrices.bfloat16() if matrices.device.type == "cuda" else matrices


def hidden_matrices(module: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """The trained matrices inside transformer blocks and heads' MLPs, and how many maps are stacked in each."""
    seen: set[int] = set()  # weights may be shared
    for name, part in module.named_modules():
        path = name.split(".")
        if isinstance(part, nn.Linear) and part.weight.requires_grad and ("blocks" in path or "mlp" in path):
            if id(part.weight) not in seen:
                yield part.weight, 3 if path[-1] == "qkv" else 1
            seen.add(id(part.weight))


def muon_groups(matrices: Iterable[tuple[Tensor, int]]) -> list[dict[str, Any]]:
    """One group for each shape and number of parts."""
    groups: dict[tuple[torch.Size, int], dict[str, Any]] = {}
    for weight, parts in matrices:
        groups.setdefault((weight.shape, parts), {"params": [], "parts": parts})["params"].append(weight)
    return list(groups.values())
