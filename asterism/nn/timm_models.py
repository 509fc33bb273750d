"""Networks by their timm names."""

from __future__ import annotations

import difflib
from typing import Any, Literal

import timm
from timm.models import is_model_in_modules

from asterism.errors import UserError

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
    ) as error:  # incompatible sizes; a tag (`name.tag`) unknown to timm
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise UserError(f"timm cannot build {name!r} with {given}: {error or 'these are incompatible'}") from None


def published_network(name: str, arguments: dict[str, Any]) -> Any:
    """A timm network with the weights published under its name, downloaded if they are not cached."""
    try:
        return timm.create_model(name, pretrained=True, **arguments)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"the published weights of {name!r} could not be downloaded: {str(error).splitlines()[0]}; "
            "download them on another machine and give the file, or start without pretrained weights"
        ) from None
