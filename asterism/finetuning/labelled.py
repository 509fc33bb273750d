"""The labelled images of a run: which are trained on, and which are held out to choose the best weights."""

from __future__ import annotations

from dataclasses import dataclass

from asterism.data import Source, Subset
from asterism.data.parts import class_balanced, drawn_images, held_out_places, labels_of
from asterism.errors import UserError
from asterism.evals.few_labels import listed_places
from asterism.finetuning.recipe import FinetuneRecipe
from asterism.finetuning.task import task_class
from asterism.inputs import user_path
from asterism.ops import streams
from asterism.ops.random import fold


@dataclass(frozen=True)
class LabelledParts:
    """Sources with no image in common, and the names of their classes."""

    everything: Source  # both parts, as the data is identified
    train: Source
    held_out: Source | None
    classes: tuple[str, ...]


def open_parts(recipe: FinetuneRecipe) -> LabelledParts:
    """Draws depend only on labels and seed."""
    kind, data, seed = task_class(recipe.task.name), recipe.data, recipe.trainer.seed
    source = kind.open(recipe.task, data.path, data.split)
    classes = kind.class_names(recipe.task, source)
    if data.label_list is not None:
        source = Subset(source, listed_places(user_path(data.label_list), source))
    elif data.label_share < 1:
        source = Subset(source, _share(source, data.label_share, fold(seed, streams.Labelled.LABEL_SHARE)))
    if recipe.validation is None:
        return LabelledParts(source, source, None, classes)
    held_out = _held_out(source, recipe.validation.share, fold(seed, streams.Labelled.VALIDATION))
    kept = sorted(set(range(len(source))) - set(held_out))
    return LabelledParts(source, Subset(source, kept), Subset(source, held_out), classes)


def _share(source: Source, share: float, seed: int) -> list[int]:
    if source.classes is not None and source.label(0) is not None:
        return class_balanced(labels_of(source), share, seed)
    return drawn_images(len(source), max(1, round(share * len(source))), seed)


def _held_out(source: Source, share: float, seed: int) -> list[int]:
    """Of every class if images have one label, else of all images."""
    if source.classes is not None and source.label(0) is not None:
        found = held_out_places(labels_of(source), share, seed)
    else:
        found = drawn_images(len(source), min(len(source) - 1, max(1, round(share * len(source)))), seed)
    if not found:
        raise UserError(
            f"{source.name} has too few images to hold some out for choosing the best weights; add images, or train on "
            "all of them and keep the last weights with validation=null"
        )
    return found
