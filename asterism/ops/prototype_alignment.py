"""Cross-entropy of embeddings against prototype targets that many rows share, without prototype-wide gathered targets.

For a row with embedding h, whose target q̃ is row σ of a small table, and prototypes C (one per row),

    −Σ_k q̃_k log softmax(C h / τ)_k = |q̃| · logsumexp(C h / τ) − ⟨q̃ C, h⟩ / τ        with |q̃| = Σ_k q̃_k.

So the table is multiplied by C once, which leaves one column per embedding channel, and the *product* is gathered by
σ. Likewise the gradient of the second term with respect to C is the table times the sum of the embeddings that share
each of its rows. Logits are needed only for the logsumexp. They are held in one buffer of a few rows and overwritten by
probabilities. The result is a scalar, so these give its gradients at once.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_BUFFER = 1 << 22  # numbers in the logits buffer: 16 MiB, small enough for caches, large enough for matrix products


def prototype_cross_entropy(
    embeddings: Float[Tensor, "n p"],
    prototypes: Float[Tensor, "k p"],
    targets: Float[Tensor, "m k"],
    which: Int[Tensor, " n"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Mean over rows of the cross-entropy of softmax(prototypes · embedding / temperature) against targets[which].

    Gradients reach embeddings and prototypes; targets and `which` are constants. All in float32.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        return _PrototypeCrossEntropy.apply(embeddings.float(), prototypes.float(), targets.float(), which, temperature)


class _PrototypeCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, C: Tensor, targets: Tensor, which: Tensor, temperature: float) -> Tensor:
        rows = len(h)
        mass = targets.sum(dim=1)[which]
        pulled = (targets @ C)[which]  # q̃ C of each row
        total = -(pulled * h).sum() / temperature
        grad_h = pulled.neg_()
        shared = torch.zeros(len(targets), h.shape[1], dtype=h.dtype, device=h.device).index_add_(0, which, h)
        grad_C = -(targets.T @ shared)
        step = max(1, _BUFFER // len(C))
        for start in range(0, rows, step):
            part = slice(start, start + step)
            logits = (h[part] / temperature) @ C.T
            peak = logits.amax(dim=1, keepdim=True)
            exponentials = logits.sub_(peak).exp_()
            normaliser = exponentials.sum(dim=1, keepdim=True)
            total += mass[part] @ (peak + normaliser.log()).squeeze(1)
            weighted = exponentials.mul_(mass[part, None] / normaliser)
            grad_h[part].addmm_(weighted, C)
            grad_C.addmm_(weighted.T, h[part])
        scale = 1 / (rows * temperature)
        ctx.save_for_backward(grad_h.mul_(scale), grad_C.mul_(scale))
        return total / rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_h, grad_C = ctx.saved_tensors
        return grad * grad_h, grad * grad_C, None, None, None
