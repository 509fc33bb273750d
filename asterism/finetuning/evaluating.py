"""The task's own metric of a fine-tuned run on test images, as a result with everything it depends on."""

from __future__ import annotations

import time

import torch

from asterism.data.sources.source import same_images
from asterism.evals.result import Result, data_used
from asterism.finetuning.measuring import measured
from asterism.finetuning.model import load_model
from asterism.finetuning.run import FinetunedRun
from asterism.types import Model


def evaluate_task(run: FinetunedRun, data: str, split: str | None, device: torch.device) -> Result:
    """The metric on the test part of the data; `train` of the result names the data of the run."""
    start = time.monotonic()
    recipe = run.finetune_recipe
    model = load_model(run.path).to(device).eval()
    task = model.task
    source = task.labelled_like_training(type(task).open_test(recipe.task, data, split))
    values = dict(measured(task, source, task.metric()))
    trained_on = type(task).open(recipe.task, recipe.data.path, recipe.data.split)
    constants = {
        "task": recipe.task.model_dump(mode="json"),
        "image_size": task.image_size,
        "weights": "best on held-out training images" if recipe.validation is not None else "last",
    }
    notes = []
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
        notes=tuple(notes),
    )
