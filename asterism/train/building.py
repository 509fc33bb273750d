"""A method from a recipe, with fresh weights or those of a checkpoint."""

from __future__ import annotations

import sys

import torch

from asterism.errors import UserError
from asterism.methods import method_class
from asterism.methods.base import Method, UnopenedConfig
from asterism.train import checkpoint
from asterism.train.recipe import Recipe
from asterism.train.run import Run


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
        print(f"{problem}; used {path.name} instead", file=sys.stderr)
    state = checkpoint.load(path)
    checkpoint.check_fit(state.method, method.state_dict())
    method.load_state_dict(state.method)
    return method.eval()
