"""The folder of a fine-tuned run: as in pretraining, with the model that was chosen on held-out training images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asterism.errors import UserError
from asterism.finetuning.recipe import FinetuneRecipe
from asterism.train.run import Run, is_finetuned, open_run

MODEL_NAME = "model.safetensors"
PROBE_NAME = "probe.safetensors"  # the model of the linear probe that the run started from


class FinetunedRun(Run):
    """`model.safetensors` is the whole model, and `encoder.safetensors` its backbone, both with the best weights."""

    def summary(self) -> str:
        return (
            f"Finished: {self.path}\n"
            f"Next:     asterism predict {self.path} --images NEW/  or  asterism evaluate {self.path} --data LABELLED/"
        )

    @property
    def model(self) -> Path:
        return self.path / MODEL_NAME

    @property
    def probe(self) -> Path | None:
        path = self.path / PROBE_NAME
        return path if path.is_file() else None

    @property
    def origin(self) -> str:
        recipe = self.finetune_recipe
        return f"fine-tuned for {recipe.task.name} from {Path(recipe.source.path).name}"

    @property
    def config(self) -> dict[str, Any]:
        return self.finetune_recipe.model_dump(mode="json")

    @property
    def finetune_recipe(self) -> FinetuneRecipe:
        """The resolved recipe."""
        return self.read(FinetuneRecipe)


def open_finetuned(path: Path | str) -> FinetunedRun:
    """Open an existing fine-tuned run; the error says what is missing."""
    run = open_run(path)
    if not is_finetuned(run.path):
        raise UserError(f"{run.path} is a run of `asterism pretrain`; fine-tune it first: asterism finetune {run.path}")
    return FinetunedRun(run.path)
