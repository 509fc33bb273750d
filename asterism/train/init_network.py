"""A recipe whose network is that of the weights it starts from (`backbone.name: init`)."""

from __future__ import annotations

from typing import Any

from asterism.errors import UserError
from asterism.nn.backbone import FROM_WEIGHTS, NAME_OF_INIT, Architecture, BackboneConfig
from asterism.nn.weights.description import warn_of_guesses, weights_options
from asterism.nn.weights.load import read_weights
from asterism.train.processes import Init
from asterism.train.recipe import Recipe

# Arguments of features alone, which every backbone sets itself.
_OWN = ("num_classes", "global_pool", "dynamic_img_size", "strict_img_size", "drop_path_rate")


def with_network_of(recipe: Recipe, init: Init | None) -> Recipe:
    """The recipe with network, epsilon and pixel statistics of the weights, if `backbone.name` is `init`.

    Image size, drop path, mask token and registers remain the recipe's, and so do pixel statistics that were given.
    """
    config = recipe.backbone
    if config.name != NAME_OF_INIT:
        return recipe
    if init is None:
        raise UserError("backbone.name = init takes the network from other weights: give --init WEIGHTS")
    given = [name for name in FROM_WEIGHTS if name in config.model_fields_set]
    if given:
        raise UserError(
            f"backbone.{given[0]} = {getattr(config, given[0])!r}, but backbone.name = init takes it from the weights; "
            "leave it out"
        )
    weights = read_weights(init.source, weights_options(**init.options))
    if weights.asked is not None:
        raise UserError(weights.asked)
    warn_of_guesses(init.source, weights.guesses)
    pixels = {"mean": weights.mean, "std": weights.std}
    kept = recipe.data.model_fields_set
    data = recipe.data.model_copy(update={key: value for key, value in pixels.items() if key not in kept})
    return recipe.model_copy(update={"backbone": _described(config, weights.architecture), "data": data})


def _described(config: BackboneConfig, architecture: Architecture) -> BackboneConfig:
    arguments: dict[str, Any] = {key: v for key, v in architecture.arguments.items() if key not in _OWN}
    changes = {
        "name": architecture.name,
        "arguments": arguments,
        "resampling": architecture.resampling,
        "layer_norm_eps": config.layer_norm_eps or architecture.layer_norm_eps,
    }
    return BackboneConfig.model_validate({**config.model_dump(), **changes})
