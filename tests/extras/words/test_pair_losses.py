"""Pair losses against slow loops, the losses of open_clip and transformers, and themselves in two processes."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.extras.words.pair_losses import sigmoid_pair_loss, softmax_pair_loss
from tests import distributed

PAIRS, DIM = 12, 5


def pairs(count: int = PAIRS, dim: int = DIM, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Images, texts, log-scale and bias; texts resemble their images a little."""
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(count, dim, generator=generator)
    texts = images + 1.5 * torch.randn(count, dim, generator=generator)
    values = (F.normalize(images, dim=1), F.normalize(texts, dim=1), torch.tensor(math.log(20.0)), torch.tensor(-10.0))
    return tuple(value.to(dtype).requires_grad_() for value in values)


def slow_sigmoid(images: Tensor, texts: Tensor, log_scale: Tensor, bias: Tensor) -> Tensor:
    total = images.new_zeros(())
    for i in range(len(images)):
        for j in range(len(texts)):
            logit = log_scale.exp() * (images[i] * texts[j]).sum() + bias
            sign = 1 if i == j else -1
            total = total - torch.log(1 / (1 + torch.exp(-sign * logit)))
    return total / len(images)


def slow_softmax(images: Tensor, texts: Tensor, log_scale: Tensor, bias: Tensor) -> Tensor:
    total = images.new_zeros(())
    for i in range(len(images)):
        row = torch.stack([log_scale.exp() * (images[i] * text).sum() for text in texts])
        column = torch.stack([log_scale.exp() * (image * texts[i]).sum() for image in images])
        total = total - torch.log(row[i].exp() / row.exp().sum()) - torch.log(column[i].exp() / column.exp().sum())
    return total / (2 * len(images)) + 0 * bias


def ours(kind: str, values: tuple[Tensor, ...], chunk: int = 5) -> Tensor:
    images, texts, log_scale, bias = values
    if kind == "sigmoid":
        return sigmoid_pair_loss(images, texts, log_scale.exp(), bias, chunk)
    return softmax_pair_loss(images, texts, log_scale.exp(), chunk) + 0 * bias


SLOW = {"sigmoid": slow_sigmoid, "softmax": slow_softmax}


@pytest.mark.parametrize("chunk", [1, 5, 12, 1024])
@pytest.mark.parametrize("kind", SLOW)
def test_equals_the_slow_loop_with_its_gradients(kind: str, chunk: int) -> None:
    values, same = pairs(), pairs(dtype=torch.float64)
    loss, expected = ours(kind, values, chunk), SLOW[kind](*same)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    (3 * loss).backward()
    (3 * expected).backward()
    for value, other in zip(values, same, strict=True):
        assert value.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(value.grad.double(), other.grad, rtol=1e-4, atol=1e-5)


def test_equals_open_clip() -> None:
    from open_clip.loss import ClipLoss, SigLipLoss

    images, texts, log_scale, bias = pairs()
    theirs = SigLipLoss()(images, texts, log_scale.exp(), bias)
    torch.testing.assert_close(sigmoid_pair_loss(images, texts, log_scale.exp(), bias, 5), theirs)
    theirs = ClipLoss()(images, texts, log_scale.exp())
    torch.testing.assert_close(softmax_pair_loss(images, texts, log_scale.exp(), 5), theirs)


def part_of_two(kind: str) -> list[Any]:
    """Mean loss and gradients of this process's half, averaged over processes as training does."""
    from asterism.ops.collectives import all_reduce_sum, rank

    values = pairs()
    half = PAIRS // 2
    own = tuple(value[rank() * half : (rank() + 1) * half] for value in values[:2])
    loss = ours(kind, (*own, *values[2:]))
    loss.backward()
    return [all_reduce_sum(loss.detach()) / 2, *(all_reduce_sum(value.grad) / 2 for value in values)]


@pytest.mark.parametrize("kind", SLOW)
def test_two_processes_equal_one(kind: str) -> None:
    values = pairs()
    loss = ours(kind, values)
    loss.backward()
    expected = [loss.detach(), *(value.grad for value in values)]
    for results in distributed.run(part_of_two, kind):
        for found, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
