"""Training views of images with masks, so that what a method finds in its views can be compared with the truth."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from asterism.data import Views, to_batch, view_loader
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.errors import UserError
from asterism.methods.base import Method
from asterism.train.recipe import Recipe
from asterism.types import Batch


def labelled_batches(method: Method, recipe: Recipe, data: str, batches: int, batch_size: int) -> Iterator[Batch]:
    source = open_segmented(data)
    if len(source) < batches * batch_size:
        raise UserError(f"{data} has {len(source)} images; {batches} batches of {batch_size} need more")
    views = Views(tuple(view.model_copy(update={"segments": True}) for view in method.views))
    config = recipe.data.model_copy(update={"workers": 0})
    loader = view_loader(source, views, config, batch_size=batch_size, seed=recipe.trainer.seed, steps=batches)
    for raw in loader:
        yield to_batch(raw, torch.device("cpu"), recipe.data.mean, recipe.data.std)
