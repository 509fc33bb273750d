"""A method from a recipe, with fresh weights or those of a checkpoint, and its encoder as a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError

from asterism.errors import UserError, reason_of
from asterism.methods import method_class
from asterism.methods.base import Method, UnopenedConfig
from asterism.nn.concepts import ConceptEncoder, concepts_file
from asterism.nn.encoder import Encoder
from asterism.nn.weights.load import load_encoder
from asterism.train import checkpoint
from asterism.train.recipe import Recipe
from asterism.train.run import Run
from asterism.viz.console import warn


def build_method(recipe: Recipe) -> Method:
    """The method with the initial weights of the recipe's seed."""
    if isinstance(recipe.method, UnopenedConfig):
        raise UserError(f"{recipe.method.name} is defined by a file of the run, which only pretrain --resume executes")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.trainer.seed)
        method = method_class(recipe.method.name)(recipe.method, recipe.backbone)
    method.mean, method.std = recipe.data.mean, recipe.data.std
    return method


def load_method(run: Run) -> Method:
    """The method at the last checkpoint, for pictures that need more than the encoder (reconstructions, matches)."""
    method = build_method(run.recipe)
    path, problems = checkpoint.newest_intact(run.checkpoints)
    for problem in problems:
        warn(f"{problem}; used {path.name} instead")
    state = checkpoint.load(path)
    checkpoint.check_fit(state.method, method.state_dict())
    method.load_state_dict(state.method)
    return method.eval()


def export(recipe: Recipe, state: checkpoint.State, path: Path) -> None:
    """Write `encoder.safetensors` from the full state, which works for sharded parameters too."""
    method = build_method(recipe)
    method.load_state_dict(state.method)
    with _complete_without(path, state):
        method.encoder().save(path, step=state.step)


def export_start(start: Encoder, state: checkpoint.State, path: Path) -> None:
    """Write the encoder that the run started from instead. If it has no concepts, those of the run do not stay."""
    with _complete_without(path, state):
        if not isinstance(start, ConceptEncoder):
            concepts_file(path).unlink(missing_ok=True)
        start.save(path)


@contextlib.contextmanager
def _complete_without(path: Path, state: checkpoint.State) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write {path}: {reason_of(error)}; the checkpoint of step {state.step} is complete"
        ) from None


def exported_step(run: Run) -> int | None:
    """The step of the run's encoder; None if there is none, or none that can be read."""
    if not run.weights.is_file():
        return None
    try:
        return load_encoder(run.path).step
    except UserError:
        return None
