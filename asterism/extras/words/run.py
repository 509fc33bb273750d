"""The folder of an aligned run: as in pretraining, with the frozen encoder and what was aligned with text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asterism.config import read_yaml
from asterism.errors import UserError
from asterism.extras.words.aligned import ALIGNMENT_NAME
from asterism.extras.words.recipe import AlignRecipe
from asterism.train.run import Run, open_run


class AlignedRun(Run):
    """`encoder.safetensors` is the frozen encoder, and `alignment.safetensors` the probe and our own text tower."""

    def summary(self) -> str:
        return (
            f"Finished: {self.path}\n"
            f"Next:     asterism embed {self.path} --data PHOTOS/  and  asterism search {self.path} --text SENTENCE"
        )

    @property
    def alignment(self) -> Path:
        return self.path / ALIGNMENT_NAME

    @property
    def origin(self) -> str:
        recipe = self.align_recipe
        return f"{Path(recipe.source.path).name} aligned with text ({Path(recipe.text.name).name})"

    @property
    def config(self) -> dict[str, Any]:
        return self.align_recipe.model_dump(mode="json")

    @property
    def align_recipe(self) -> AlignRecipe:
        """The resolved recipe."""
        return self.read(AlignRecipe)


def open_aligned(path: Path | str) -> AlignedRun:
    """Open an existing aligned run; the error says what is missing."""
    run = open_run(path)
    if "probe" not in read_yaml(run.path / "config.yaml"):
        raise UserError(f"{run.path} is not a run of `asterism align`; align it first: asterism align {run.path}")
    return AlignedRun(run.path)
