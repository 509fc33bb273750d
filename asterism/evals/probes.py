"""Linear classifiers on frozen features: a grid of settings is trained on most of the training images, one is chosen on
the rest, and only that one is tested. All heads of a grid are trained at once, so features are read once per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.data import Source
from asterism.data.parts import held_out_places
from asterism.errors import UserError
from asterism.evals.base import ProtocolConfig
from asterism.features.extract import Extracted
from asterism.ops import streams
from asterism.ops.random import fold, generator
from asterism.ops.schedules import cosine
from asterism.ranges import Count, InnerShare, Positive, Several
from asterism.viz.bar import Bar

Loaded = TypeVar("Loaded")

_ROWS = 4096  # scored at a time


class GridConfig(ProtocolConfig):
    """The learning rates of the grid, and the share of images to choose among them."""

    learning_rates: Several[Positive]
    epochs: Count = 100
    chosen_on: InnerShare = 0.1  # share of the training images held out to choose the learning rate


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    learning_rate: float
    batch_size: int


@dataclass(frozen=True)
class Chosen:
    """The classifier with the highest accuracy on the held-out training images."""

    head: nn.Module
    setting: Setting
    accuracy: float  # on those images, in percent


def probe(
    train: Extracted,
    test: Extracted,
    grid: Sequence[Setting],
    make_head: Callable[[int, int, int], nn.Module],
    make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    config: GridConfig,
    *,
    device: torch.device,
    title: str,
) -> tuple[dict[str, float], Setting]:
    """Accuracies of the chosen classifier on the test images, and its setting. `make_head` takes the number of inputs,
    the number of classes, and a key."""
    classes = 1 + int(torch.cat([train.labels, test.labels]).max())
    head = partial(make_head, train.features.shape[1], classes)
    chosen = choose_classifier(train, grid, head, make_optimizer, config, classes=classes, device=device, title=title)
    every = torch.arange(len(test.labels))
    values = accuracies(chosen.head, test.features, test.labels, every, classes)
    found = {"top1_kept_aside": chosen.accuracy, "chosen_learning_rate": chosen.setting.learning_rate}
    return values | found, chosen.setting


def choose_classifier(
    train: Extracted,
    grid: Sequence[Setting],
    make_head: Callable[[int], nn.Module],
    make_optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    config: GridConfig,
    *,
    classes: int,
    device: torch.device,
    title: str,
) -> Chosen:
    """Train every setting on the same images, all settings of one batch size at once, and return the best.

    Batch sizes are limited to the number of images.
    """
    labels, seed = train.labels.tolist(), config.seed
    held_out = torch.tensor(held_out_places(labels, config.chosen_on, seed))
    trained_on = torch.tensor(sorted(set(range(len(labels))) - set(held_out.tolist())))
    if not len(held_out):
        raise UserError(
            "every class has a single training image; choosing a learning rate takes at least two of some class"
        )
    features = train.features.to(device) if device.type != "cpu" else train.features
    chosen: Chosen | None = None
    for size in dict.fromkeys(min(setting.batch_size, len(trained_on)) for setting in grid):
        rates = list(dict.fromkeys(s.learning_rate for s in grid if min(s.batch_size, len(trained_on)) == size))
        heads = [make_head(fold(seed, streams.Probe.WEIGHTS)).to(device) for _ in rates]
        groups = [{"params": list(head.parameters()), "lr": rate} for head, rate in zip(heads, rates, strict=True)]

        def load(places: Int[Tensor, " b"]) -> tuple[Tensor, Tensor]:
            rows = trained_on[places]
            return features[rows.to(features.device)].float(), train.labels[rows].to(device)

        train_heads(
            heads,
            make_optimizer(groups),
            lambda step, steps: cosine(step, steps, 1.0, 0.0),
            load,
            _loss,
            images=len(trained_on),
            batch_size=size,
            epochs=config.epochs,
            key=fold(seed, streams.Probe.ORDER),
            title=title,
        )
        scores = [accuracies(head, features, train.labels, held_out, classes)["top1"] for head in heads]
        place = best(scores)
        if chosen is None or scores[place] > chosen.accuracy:
            chosen = Chosen(heads[place], Setting(rates[place], size), scores[place])
    assert chosen is not None, "the grid is empty"
    return chosen


@torch.no_grad()
def accuracies(
    head: nn.Module,
    features: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    rows: Int[Tensor, " m"],
    classes: int,
) -> dict[str, float]:
    """Top-1 and (for more than five classes) top-5 accuracy in percent."""
    device = next(head.parameters()).device
    head.eval()
    first = five = 0
    for start in range(0, len(rows), _ROWS):
        places = rows[start : start + _ROWS]
        logits = head(features[places.to(features.device)].to(device).float())
        right = logits.topk(min(5, classes)).indices.cpu() == labels[places][:, None]
        first += int(right[:, 0].sum())
        five += int(right.any(1).sum())
    found = {"top1": 100 * first / len(rows)}
    return found | ({"top5": 100 * five / len(rows)} if classes > 5 else {})


def check_classes(source: Source, labels: Int[Tensor, " n"]) -> None:
    if len(set(labels.tolist())) < 2:
        raise UserError(
            f"all {len(labels)} training images of {source.name} have the same class; a classifier needs at least two"
        )


def _loss(head: nn.Module, batch: tuple[Tensor, Tensor]) -> Float[Tensor, ""]:
    return F.cross_entropy(head(batch[0]), batch[1])


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
                # One after the other, so that only one head's graph is in memory.
                torch.autograd.backward(loss(head, loaded))
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
