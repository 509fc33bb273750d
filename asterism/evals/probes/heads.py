"""Many small heads, such as a grid of learning rates, trained at once on features that are read once per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.ops.random import fold, generator
from asterism.viz.bar import Bar

Loaded = TypeVar("Loaded")


def linear_layer(inputs: int, outputs: int, key: int) -> nn.Linear:
    """A linear layer with weights of standard deviation 0.01, drawn from the key, and zero bias."""
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    nn.init.normal_(layer.weight, std=0.01, generator=generator(key))
    nn.init.zeros_(layer.bias)
    return layer


def train_heads(
    heads: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    decay: Callable[[int, int], float],
    load: Callable[[Int[Tensor, " b"]], Loaded],
    loss: Callable[[nn.Module, Loaded], Float[Tensor, ""]],
    *,
    images: int,
    batch_size: int,
    epochs: int,
    key: int,
    title: str,
) -> None:
    """Train all heads on the same batches. `optimizer` has one group per head; `decay` returns the factor of the
    learning rate, given the step and the number of steps."""
    start = [group["lr"] for group in optimizer.param_groups]
    steps = -(-images // batch_size) * epochs
    with Bar(title, steps) as bar:
        for step, places in enumerate(_batches(images, batch_size, epochs, key)):
            for group, lr in zip(optimizer.param_groups, start, strict=True):
                group["lr"] = lr * decay(step, steps)
            loaded = load(places)
            optimizer.zero_grad(set_to_none=True)
            for head in heads:
                torch.autograd.backward(
                    loss(head, loaded)
                )  # one after the other, so that only one head's graph is in memory
            optimizer.step()
            bar.advance(1)


def best(values: Iterable[float]) -> int:
    """The index of the largest value, the first in case of a tie; NaN, from a head that diverged, never wins."""
    found = [value if value == value else float("-inf") for value in values]
    return max(range(len(found)), key=lambda place: (found[place], -place))


def _batches(images: int, size: int, epochs: int, key: int) -> Iterator[Int[Tensor, " b"]]:
    for epoch in range(epochs):
        order = torch.randperm(images, generator=generator(fold(key, epoch)))
        for start in range(0, images, size):
            yield order[start : start + size].sort().values  # ascending, so that mapped files are read forwards
