"""Muon: orthogonalised momentum for the matrices inside a network, AdamW for everything else.

AdamW scales every weight by itself, so a few dominant directions of the gradient make up most of a matrix's update.
Muon replaces the momentum U S Vᵀ of a matrix by U Vᵀ, which moves all directions equally far (Jordan et al., 2024).
Small networks learn more from the same images this way (docs/results.md).

Updates are scaled to the root mean square of AdamW's, 0.2·√(longer side), so both share learning rate and weight decay
(Liu et al., 2025). Patch embeddings, positions, tokens, norms, biases and prototypes stay with AdamW.

With `every` = n, matrices take turns: each step updates every n-th of them, n times as far, while momenta follow all
gradients. A step of a small network then costs less, and the network learns as much (lab/training.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from asterism.train.shared_orthogonalization import orthogonalize_all

_MOMENTUM = 0.95
_ADAM_RMS = 0.2  # root mean square of an update of AdamW, in units of the learning rate


class Muon(torch.optim.Optimizer):
    """The first groups, `adamw`, are updated by AdamW, the others by Muon.

    Each Muon group holds matrices of the same shape, which are orthogonalised together; `parts` is the number of maps
    that are stacked in each of them: 3 in a fused query, key and value. `step`, which is set like the learning rate,
    decides which groups it updates.
    """

    def __init__(self, adamw: torch.optim.AdamW, groups: Iterable[dict[str, Any]], every: int = 1) -> None:
        super().__init__([*adamw.param_groups, *groups], defaults={"lr": 0.0, "weight_decay": 0.0, "step": 0})
        self._adamw = adamw
        self._first = len(adamw.param_groups)  # of Muon's groups
        self._every = every

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        self._adamw.state = self.state  # one place for checkpoints; `load_state_dict` replaces both
        self._adamw.param_groups = self.param_groups[: self._first]
        loss = self._adamw.step(closure)
        due = list(self._due())
        directions = orthogonalize_all([self._ahead(group, weights) for group, weights in due])
        for (group, weights), direction in zip(due, directions, strict=True):
            scale, lr = _ADAM_RMS * math.sqrt(max(direction.shape[1:])), self._every * group["lr"]
            updates = direction.reshape(len(weights), *weights[0].shape).unbind()
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            torch._foreach_add_(weights, updates, alpha=-lr * scale)
        return loss

    def _due(self) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
        """Update all momenta, and yield the matrices of each group whose turn it is."""
        number = 0
        for group in self.param_groups[self._first :]:
            moved = [weight for weight in group["params"] if weight.grad is not None]
            if moved:
                torch._foreach_lerp_([self._momentum(w) for w in moved], [w.grad for w in moved], 1 - _MOMENTUM)
            turn = group["step"] % self._every
            due = [weight for place, weight in enumerate(moved, number) if place % self._every == turn]
            number += len(moved)
            if due:
                yield group, due

    def _ahead(self, group: dict[str, Any], weights: Sequence[Tensor]) -> Float[Tensor, "n r c"]:
        """The momenta one step ahead (Nesterov's form), one matrix per part."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        ahead = torch.stack(torch._foreach_lerp(gradients, [self._momentum(w) for w in weights], _MOMENTUM))
        parts, (rows, columns) = group["parts"], weights[0].shape
        return ahead.view(len(weights) * parts, rows // parts, columns)

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        return state["momentum"]


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
