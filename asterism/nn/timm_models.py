"""Networks by their timm names."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Literal

import timm
import torch
from timm.models import is_model_in_modules

from asterism.errors import UserError, unknown
from asterism.nn.weights.hub import cached_file, not_downloaded, without_retries

Kind = Literal["vit", "rope", "swin"]  # plain ViTs, those that rotate queries and keys (DINOv3, EVA), Swins

_MODULES: dict[Kind, list[str]] = {
    "vit": ["vision_transformer", "deit"],
    "rope": ["eva"],
    "swin": ["swin_transformer"],
}


def family_of(name: str) -> Kind:
    """The adapter for this model."""
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(["vit_*", "deit_*", "eva*", "swin_*"]), n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`asterism list models` lists all"
        raise UserError(f"timm has no model {name!r}; {hint}")
    architecture = name.partition(".")[0]
    found = next((kind for kind, modules in _MODULES.items() if is_model_in_modules(architecture, modules)), None)
    if found is None:
        raise unsupported(name)
    return found


def unsupported(name: str) -> UserError:
    return UserError(
        f"{name!r} is neither a plain vision transformer nor a Swin; choose a model vit_*, deit_*, eva* or swin_*"
    )


def create_network(name: str, arguments: dict[str, Any]) -> Any:
    """A timm network with fresh weights."""
    try:
        return timm.create_model(name, **arguments)
    except (
        AssertionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:  # incompatible sizes; a tag (`name.tag`) unknown to timm
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise UserError(f"timm cannot build {name!r} with {given}: {error or 'these are incompatible'}") from None


def published_network(name: str, arguments: dict[str, Any]) -> Any:
    """A timm network with the weights published under its name, downloaded if they are not cached."""
    config = timm.models.get_pretrained_cfg(name)
    repository = getattr(config, "hf_hub_id", None)
    with without_retries(cached=repository is not None and cached_file(repository) is not None):
        try:
            return timm.create_model(name, pretrained=True, **arguments)
        except (OSError, RuntimeError, ValueError) as error:
            raise not_downloaded(name, error) from None


@dataclass(frozen=True)
class Outline:
    """Sizes of a named model that a file of its weights may not show."""

    dim: int
    heads: int | None  # None for a Swin, which has several numbers
    global_pool: str  # as timm's argument: its own if it has weights, else none


@dataclass(frozen=True)
class PixelSettings:
    """How published weights expect their pixels."""

    mean: tuple[float, ...]  # of RGB
    std: tuple[float, ...]
    image_size: int


def network_outline(name: str) -> Outline:
    """Width and heads of a named model; nothing is allocated."""
    kind = family_of(name)
    with torch.device("meta"):
        network = timm.models.model_entrypoint(name.partition(".")[0])()
    if kind == "swin":
        return Outline(network.num_features, None, "")
    pools = network.attn_pool is not None or not isinstance(network.fc_norm, torch.nn.Identity)
    return Outline(network.embed_dim, network.blocks[0].attn.num_heads, network.global_pool if pools else "")


def pixel_settings(name: str) -> list[PixelSettings]:
    """The settings of the named weights; without a tag, those of all weights of the model, its default first."""
    model, _, tag = name.partition(".")
    tags = timm.list_pretrained(f"{model}.*")
    if tag and name not in tags:
        raise unknown("weights of timm", name, tags)
    configs = [timm.models.get_pretrained_cfg(each) for each in ([name] if tag else [name, *tags])]
    return [PixelSettings(each.mean, each.std, each.input_size[1]) for each in configs if each is not None]
