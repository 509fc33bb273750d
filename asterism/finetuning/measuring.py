"""The task's own metric over a set of labelled images, shared by all processes; memory does not grow with the set."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from asterism.data import Loader, Sample, Source, Subset
from asterism.data.order import each_once
from asterism.data.sources.source import same_images
from asterism.errors import UserError
from asterism.evals.result import Result, data_used
from asterism.finetuning.model import load_model
from asterism.finetuning.run import FinetunedRun
from asterism.finetuning.task import Metric, Task
from asterism.images.bad_image import BadImage
from asterism.ops import collectives
from asterism.types import Model

_AT_ONCE = 32  # images that are predicted together, of usual size
_MOST_PIXELS = 24_000_000  # after which no more are added. Two such batches may be in memory: 144 MB, or a few images


@dataclass(frozen=True)
class Predicted:
    """A labelled image with what the task predicts for it."""

    sample: Sample
    prediction: Any
    truth: Any


@torch.no_grad()
def measured(task: Task, source: Source, metric: Metric, *, workers: int = 0) -> Mapping[str, float]:
    """The values of a new metric. Each process takes its share of the images, and all get the same result."""
    rank, world = collectives.rank(), collectives.world_size()
    part = Subset(source, list(range(rank, len(source), world))) if world > 1 else source
    unreadable = 0
    for batch in predictions(task, part, workers=workers):
        metric.update([each.prediction for each in batch.found], [each.truth for each in batch.found])
        unreadable += len(batch.bad)
    counts = torch.tensor([unreadable, len(source)])
    total = int(collectives.all_reduce_sum(counts)[0]) if world > 1 else unreadable
    if total == len(source):
        raise UserError(f"none of the {len(source)} images of {source.name} can be read")
    return {**metric.gathered(), **({"unreadable_images": float(total)} if total else {})}


@dataclass(frozen=True)
class PredictedBatch:
    """Readable images, and the unreadable ones between them."""

    found: list[Predicted]
    bad: list[BadImage]


@torch.no_grad()
def predictions(task: Task, source: Source, *, workers: int = 0) -> Iterator[PredictedBatch]:
    """Predictions and truths in the order of the source, some images at a time: fewer if they are large."""
    for samples, bad in sample_batches(source, workers=workers):
        made = task.predict([sample.image for sample in samples]) if samples else []
        yield PredictedBatch([Predicted(s, p, task.truth(s)) for s, p in zip(samples, made, strict=True)], bad)


def evaluate_task(
    run: FinetunedRun,
    data: str,
    split: str | None,
    device: torch.device,
    others: Mapping[str, Task] = MappingProxyType({}),
) -> Result:
    """The metric on the test part of the data, also of the probe that the run started from, and of other tasks.

    `train` of the result names the data of the run.
    """
    start = time.monotonic()
    recipe = run.finetune_recipe
    model = load_model(run.path).to(device).eval()
    task = model.task
    source = task.labelled_like_training(type(task).open_test(recipe.task, data, split))
    values = dict(measured(task, source, task.metric()))
    if run.probe is not None and model.step != 0:
        others = {"linear probe": load_model(run.probe).task, **others}
    trained_on = type(task).open(recipe.task, recipe.data.path, recipe.data.split)
    constants = {
        "task": recipe.task.model_dump(mode="json"),
        "image_size": task.image_size,
        "weights": "best on held-out training images" if recipe.validation is not None else "last",
    }
    notes = []
    if run.probe is not None and model.step == 0:
        notes.append("the model is the linear probe of the frozen network, which fine-tuning did not improve on")
    if same_images(source, trained_on):
        notes.append("these are the images that the run was trained on, so the values say little about new ones")
    return Result(
        protocol=recipe.task.name,
        values=values,
        constants=constants,
        model=Model(str(run.path), model.step),
        train=data_used(trained_on),
        test=data_used(source),
        seconds=round(time.monotonic() - start, 3),
        baselines={name: dict(measured(each.to(device), source, each.metric())) for name, each in others.items()},
        notes=tuple(notes),
    )


def sample_batches(source: Source, *, workers: int = 0) -> Iterator[tuple[list[Sample], list[BadImage]]]:
    """Consecutive images, as many as may be in memory together."""
    samples: list[Sample] = []
    bad: list[BadImage] = []
    for single in Loader(source, _as_list, each_once(len(source), 1), workers=workers):
        samples += single.made
        bad += single.bad
        pixels = sum(sample.image.shape[1] * sample.image.shape[2] for sample in samples)
        if len(samples) + len(bad) == _AT_ONCE or pixels >= _MOST_PIXELS:
            yield samples, bad
            samples, bad = [], []
    if samples or bad:
        yield samples, bad


def _as_list(samples: Iterable[Sample], keys: Sequence[int]) -> list[Sample]:
    return list(samples)
