"""Losses of matching pairs: image i belongs to text i, and to no other text of the batch.

With x the images' and y the texts' unit vectors of a batch of B pairs, scale t and bias b:

    sigmoid    −1/B · Σ_ij log σ(z_ij · (t · x_i·y_j + b)),  z_ij = 1 if i = j, else −1       (SigLIP, Zhai et al. 2023)
    softmax    −1/2B · Σ_i [log softmax_j(t · x_i·y_j)]_i + [log softmax_j(t · x_j·y_i)]_i   (CLIP, Radford et al. 2021)

The batch is that of all processes together. Each computes the rows of its own images (softmax: and of its own texts)
and returns their mean, so that the mean over processes is the loss above, with its gradient.

The B × B logits never exist: they are made in chunks of columns, and the gradients are accumulated with them. What
remains for the backward pass are gradients of the size of x and y, so memory is linear in the local batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from asterism.ops.collectives import all_gather_rows_with_grad, rank

CHUNK = 1024  # columns of logits at a time


def sigmoid_pair_loss(
    images: Float[Tensor, "b d"],
    texts: Float[Tensor, "b d"],
    scale: Float[Tensor, ""],
    bias: Float[Tensor, ""],
    chunk: int = CHUNK,
) -> Float[Tensor, ""]:
    """The loss of this process's pairs among those of all processes; vectors have unit length."""
    return _Sigmoid.apply(images, all_gather_rows_with_grad(texts), scale, bias, rank() * len(images), chunk)


def softmax_pair_loss(
    images: Float[Tensor, "b d"], texts: Float[Tensor, "b d"], scale: Float[Tensor, ""], chunk: int = CHUNK
) -> Float[Tensor, ""]:
    """The mean of both directions: the text of each image, and the image of each text."""
    first = rank() * len(images)
    of_images = _Softmax.apply(images, all_gather_rows_with_grad(texts), scale, first, chunk)
    of_texts = _Softmax.apply(texts, all_gather_rows_with_grad(images), scale, first, chunk)
    return (of_images + of_texts) / 2


class _Sigmoid(torch.autograd.Function):
    """Row i of `rows` belongs to column `first` + i."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor, first: int, chunk: int) -> Tensor:
        x, y, t, b = (tensor.detach().float() for tensor in (rows, columns, scale, bias))
        loss, grad_scale, grad_bias = (x.new_zeros(()) for _ in range(3))
        grad_x, grad_y = torch.zeros_like(x), torch.zeros_like(y)
        for start, part in _chunks(y, chunk):
            likeness = x @ part.T
            # −log σ(z·l) = softplus(−z·l), and its derivative with respect to l is σ(l) − [z = 1].
            logits = t * likeness + b
            slope = logits.sigmoid()
            own, column = _own(len(x), first, start, len(part), x.device)
            loss += F.softplus(logits).sum() - logits[own, column].sum()  # softplus(−l) = softplus(l) − l
            slope[own, column] -= 1
            grad_x += slope @ part
            grad_y[start : start + len(part)] = slope.T @ x
            grad_scale += (slope * likeness).sum()
            grad_bias += slope.sum()
        count = len(x)
        _keep(ctx, (rows, t * grad_x), (columns, t * grad_y), (scale, grad_scale), (bias, grad_bias), count=count)
        return (loss / count).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradients[0] * kept for kept in ctx.saved_tensors), None, None)


class _Softmax(torch.autograd.Function):
    """Mean cross-entropy of the rows; row i belongs to column `first` + i."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, first: int, chunk: int) -> Tensor:
        x, y, t = (tensor.detach().float() for tensor in (rows, columns, scale))
        normaliser = x.new_full((len(x),), -torch.inf)
        for _, part in _chunks(y, chunk):
            normaliser = torch.logaddexp(normaliser, (t * (x @ part.T)).logsumexp(dim=1))
        matching = (x * y[first : first + len(x)]).sum(dim=1)
        grad_x, grad_y = torch.zeros_like(x), torch.zeros_like(y)
        grad_scale = x.new_zeros(())
        for start, part in _chunks(y, chunk):
            likeness = x @ part.T
            slope = (t * likeness - normaliser[:, None]).exp()
            own, column = _own(len(x), first, start, len(part), x.device)
            slope[own, column] -= 1
            grad_x += slope @ part
            grad_y[start : start + len(part)] = slope.T @ x
            grad_scale += (slope * likeness).sum()
        _keep(ctx, (rows, t * grad_x), (columns, t * grad_y), (scale, grad_scale), count=len(x))
        return (normaliser - t * matching).mean().to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*(gradients[0] * kept for kept in ctx.saved_tensors), None, None)


def _chunks(columns: Tensor, size: int) -> list[tuple[int, Tensor]]:
    return [(start, columns[start : start + size]) for start in range(0, len(columns), size)]


def _own(rows: int, first: int, start: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The matching pairs inside a chunk of columns: rows, and columns counted from the chunk's first."""
    low, high = max(first, start), min(first + rows, start + size)
    column = torch.arange(low, max(low, high), device=device)
    return column - first, column - start


def _keep(ctx: Any, *of: tuple[Tensor, Tensor], count: int) -> None:
    """Keep the gradients of sums over `count` rows, as those of means, in the types of their tensors."""
    ctx.save_for_backward(*((gradient / count).to(tensor.dtype) for tensor, gradient in of))
