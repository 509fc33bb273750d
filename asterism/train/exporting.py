"""The encoder of a checkpoint as a file, for everything that uses it after training."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from asterism.errors import UserError, reason_of
from asterism.nn.weights.load import load_encoder
from asterism.train.building import build_method
from asterism.train.checkpoint import State
from asterism.train.recipe import Recipe
from asterism.train.run import Run


def export(recipe: Recipe, state: State, path: Path) -> None:
    """Write `encoder.safetensors` from the full state, which works for sharded parameters too."""
    method = build_method(recipe)
    method.load_state_dict(state.method)
    try:
        method.encoder().save(path, step=state.step)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write {path}: {reason_of(error)}; the checkpoint of step {state.step} is complete"
        ) from None


def export_if_stale(run: Run, recipe: Recipe, state: State) -> bool:
    """Export again if the run's encoder is not that of the checkpoint: a process killed after writing the checkpoint
    leaves the encoder of the one before. Returns whether it was exported."""
    if exported_step(run) == state.step:
        return False
    export(recipe, state, run.weights)
    return True


def exported_step(run: Run) -> int | None:
    """The step of the run's encoder; None if there is none, or none that can be read."""
    if not run.weights.is_file():
        return None
    try:
        return load_encoder(run.path).step
    except UserError:
        return None
