"""A linear probe of the frozen network: logistic regression on what a task's linear layer takes.

Fine-tuning starts from its weights, and it is what is kept unless fine-tuning improves on it on held-out images
(LP-FT). The penalty is chosen by cross-validation on the images that are trained on. The layer that is measured on
held-out images has not seen them; the one that is kept is fitted to them too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from asterism.data import Source, Subset
from asterism.data.parts import drawn_images
from asterism.errors import UserError
from asterism.evals.baselines import patch_baselines, whole_image_baselines
from asterism.finetuning.labelled import LabelledParts, open_parts
from asterism.finetuning.measuring import sample_batches
from asterism.finetuning.recipe import FinetuneRecipe
from asterism.finetuning.task import Start, Task
from asterism.nn.encoder import Encoder
from asterism.ops import streams
from asterism.ops.logistic_regression import RIDGES, Linear, left_out_logits, logistic_regression
from asterism.ops.random import fold, generator
from asterism.train.clock import fitting_stride
from asterism.viz.bar import Bar

_MOST_IMAGES = 10_000  # that are encoded
_MOST_ROWS = 50_000
_FEW_ROWS = 5_000  # beyond them a single fifth of the rows is left out to choose the penalty


@dataclass(frozen=True)
class Probe:
    """Two layers of one kind."""

    measured: Linear  # fitted to the images that are trained on
    kept: Linear  # fitted to the held-out images too


@dataclass(frozen=True)
class _Rows:
    """What the layer takes and should give, for images or for patches."""

    features: Float[Tensor, "n d"]
    targets: Float[Tensor, "n c"]
    images: Int[Tensor, " n"]  # number of the image

    def and_those_of(self, other: _Rows) -> _Rows:
        pairs = zip(self._fields, other._fields, strict=True)
        return _Rows(*(torch.cat(pair) for pair in pairs))

    @property
    def _fields(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.features, self.targets, self.images


@torch.no_grad()
def fitted_probe(task: Task, parts: LabelledParts, seed: int, minutes: float | None = None) -> Probe:
    """The probe of a task's network as it is. minutes: of the run, of which encoding takes a small share."""
    key = fold(seed, streams.Labelled.PROBE)
    was_training = task.training
    task.eval()
    stride = 1
    if minutes is not None:
        everything = parts.everything
        stride = fitting_stride(minutes, len(everything), lambda few: _rows(task, Subset(everything, few), key))
    trained = _rows(task, _part(parts.train, stride, key), key)
    held_out = None if parts.held_out is None else _rows(task, _part(parts.held_out, stride, key), key)
    task.train(was_training)
    folds = 5 if len(trained.features) <= _FEW_ROWS else 1
    order = torch.randperm(len(parts.train), generator=generator(key))  # labels may repeat with the number
    logits, rows = left_out_logits(trained.features, trained.targets, order[trained.images], folds)
    place, offset = task.chosen_probe(logits, trained.targets[rows])
    measured = _fitted(trained, place, offset)
    return Probe(measured, measured if held_out is None else _fitted(trained.and_those_of(held_out), place, offset))


@torch.no_grad()
def start_from(task: Task, weights: Linear) -> None:
    """Give the task's linear layer the weights of a probe."""
    layer = task.probed_layer()
    assert layer is not None
    assert layer.bias is not None
    layer.weight.copy_(weights.weight.view_as(layer.weight))
    layer.bias.copy_(weights.bias)


def probed_baselines(task: Task, recipe: FinetuneRecipe) -> dict[str, Task]:
    """The probes of raw pixels and of an untrained network, fitted to the labelled images of a run; none if the task
    does not start from one."""
    layer = task.probed_layer()
    if layer is None:
        return {}
    parts, encoder = open_parts(recipe), Encoder(task.backbone, task.mean, task.std, task.image_size)
    make = patch_baselines if isinstance(layer, nn.Conv2d) else whole_image_baselines
    found = {}
    for name, other in make(encoder).items():
        start = Start(other.backbone, other.mean, other.std, task.image_size, task.classes, recipe.trainer.seed)
        found[name] = type(task)(task.config, start).to(next(task.parameters()).device).eval()
        start_from(found[name], fitted_probe(found[name], parts, recipe.trainer.seed).kept)
    return found


def _fitted(rows: _Rows, place: int, offset: Tensor) -> Linear:
    *_, layer = logistic_regression(rows.features, rows.targets, RIDGES[: place + 1])
    return Linear(layer.weight, layer.bias + offset)


def _part(source: Source, stride: int, key: int) -> Source:
    count = min(_MOST_IMAGES, -(-len(source) // stride))
    return source if count == len(source) else Subset(source, drawn_images(len(source), count, key))


def _rows(task: Task, source: Source, key: int) -> _Rows:
    """Those of all readable images, or as many of each as make the most in all."""
    most = max(1, _MOST_ROWS // len(source))
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    with Bar("linear probe", len(source)) as bar:
        for samples, bad in sample_batches(source):
            for features, targets in task.probe_rows(samples) if samples else ():
                number = len(found)
                order = torch.randperm(len(features), generator=generator(fold(key, number))).to(features.device)
                kept = order[:most]
                found.append((features[kept].float(), targets[kept], torch.full((len(kept),), number)))
            bar.advance(len(samples) + len(bad))
    if not found:
        raise UserError(f"none of the {len(source)} images of {source.name} can be read")
    return _Rows(*(torch.cat(parts) for parts in zip(*found, strict=True)))
