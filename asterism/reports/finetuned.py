"""The page about a fine-tuned run: curves, scores, confusions, the worst cases, and predictions next to the truth."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from asterism.data import Source, Subset
from asterism.errors import UserError
from asterism.finetuning.job import against_probe
from asterism.finetuning.labelled import open_parts
from asterism.finetuning.measuring import Predicted, predictions
from asterism.finetuning.model import FinetunedModel, load_model, saved_step
from asterism.finetuning.recipe import FinetuneRecipe
from asterism.finetuning.run import FinetunedRun
from asterism.finetuning.task import task_class
from asterism.reports.frame import framed
from asterism.viz import page
from asterism.viz.page import Section

_SEEN = 1000  # held-out images that the page is about
_SHOWN = 8  # images in a gallery
_SIDE = 192  # pixels of a picture in a gallery


def finetuned_page(run: FinetunedRun) -> str:
    """The whole page."""
    recipe = run.finetune_recipe
    about = f"{recipe.task.name}, from {recipe.source.path}, on {recipe.data.path}"
    return framed(run, recipe, about, _lead(run, recipe, run.metrics()), _held_out(run, recipe))


def _lead(run: FinetunedRun, recipe: FinetuneRecipe, metrics: Sequence[Mapping[str, Any]]) -> str:
    primary = task_class(recipe.task.name).primary
    values = [(record[f"held_out/{primary}"], record["step"]) for record in metrics if f"held_out/{primary}" in record]
    if not values:
        return "Trained on all images: the last weights are kept, and nothing was held out to measure them."
    if run.probe is not None and (kept := saved_step(run.path)) is not None:
        return f"{against_probe(primary, values, kept)}."
    best, step = max(values, key=lambda pair: (pair[0], -pair[1]))
    first = values[0][0]
    return (
        f"{primary} on held-out training images: {best:.1f} at step {step:,}, whose weights are kept; {first:.1f} at "
        "the first measurement."
    )


def _held_out(run: FinetunedRun, recipe: FinetuneRecipe) -> list[Section]:
    """Predictions for held-out images; a run whose data or weights are gone still has a page."""
    try:
        model, source = load_model(run.path), open_parts(recipe).held_out
        if source is None:
            return []
        examples, worst, pairs = _seen(model, Subset(source, range(min(len(source), _SEEN))))
    except UserError as error:
        return [Section("Predictions", page.note(f"No pictures: {error}"))]
    task = model.task
    return [
        Section("Predictions and truth", _gallery(examples), "Held-out training images."),
        Section("Worst cases", _gallery(worst), "The held-out images with the worst predictions."),
        *task.report(pairs),
    ]


@dataclass(frozen=True)
class _Pictures:
    """An image at the size of the gallery, with its labels and its prediction: photographs may be large."""

    truth: UInt8[Tensor, "3 s s"]
    prediction: UInt8[Tensor, "3 s s"]


def _pictures(model: FinetunedModel, seen: Predicted) -> _Pictures:
    image, draw = seen.sample.image, model.task.drawing
    return _Pictures(_squared(draw(image, seen.truth)), _squared(draw(image, seen.prediction)))


def _seen(model: FinetunedModel, source: Source) -> tuple[list[_Pictures], list[_Pictures], list[Any]]:
    """The first images, the worst ones (worst first), and what the report needs of all."""
    examples: list[_Pictures] = []
    worst: list[tuple[float, int, _Pictures]] = []
    pairs: list[Any] = []
    for batch in predictions(model.task, source):
        for each in batch.found:
            if len(examples) < _SHOWN:
                examples.append(_pictures(model, each))
            pairs.append(model.task.remembered(each.prediction, each.truth))
            error = model.task.error(each.prediction, each.truth)
            if error and (len(worst) < _SHOWN or (error, -len(pairs)) > worst[0][:2]):
                heapq.heappush(worst, (error, -len(pairs), _pictures(model, each)))
                if len(worst) > _SHOWN:
                    heapq.heappop(worst)
    if not pairs:
        raise UserError("none of the held-out images can be read")
    return examples, [each for _, _, each in sorted(worst, key=lambda entry: entry[:2], reverse=True)], pairs


def _gallery(shown: Sequence[_Pictures]) -> str:
    if not shown:
        return page.note("None.")
    columns = {
        "truth": torch.stack([each.truth for each in shown]),
        "prediction": torch.stack([each.prediction for each in shown]),
    }
    return page.gallery(columns)


def _squared(picture: UInt8[Tensor, "3 _ _"]) -> UInt8[Tensor, "3 s s"]:
    """The picture on a white square of the gallery's size."""
    height, width = picture.shape[1:]
    scale = _SIDE / max(height, width)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    small = F.interpolate(picture[None], size, mode="bilinear", antialias=True)[0]
    top, left = (_SIDE - size[0]) // 2, (_SIDE - size[1]) // 2
    return F.pad(small, (left, _SIDE - size[1] - left, top, _SIDE - size[0] - top), value=255)
