"""Text towers by name, and again from their description."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asterism.errors import UserError
from asterism.extras.words.towers import own_tower
from asterism.extras.words.towers.open_clip_tower import PREFIX as OPEN_CLIP
from asterism.extras.words.towers.open_clip_tower import load_open_clip_folder, load_open_clip_tower
from asterism.extras.words.towers.own_tower import OwnTower, TextConfig, rebuild_own_tower
from asterism.extras.words.towers.tower import TextTower
from asterism.extras.words.towers.transformers_tower import load_transformers_tower
from asterism.extras.words.towers.words import WordTokens
from asterism.inputs import user_path
from asterism.nn.weights.hub import PREFIX as HUB
from asterism.nn.weights.hub import from_the_cache_only, hub_text_folder


def build_tower(config: TextConfig, texts: Iterable[str]) -> TextTower:
    """The tower that the settings name; our own learns its words from these texts, and has fresh weights."""
    if config.name == own_tower.NAME:
        return OwnTower(config, WordTokens.learn(texts, config.vocabulary).words)
    return load_frozen_tower(config.name)


def load_frozen_tower(name: str) -> TextTower:
    """A published tower, from a folder, the hub or open_clip."""
    if name.startswith(OPEN_CLIP):
        return load_open_clip_tower(name)
    folder = hub_text_folder(name.removeprefix(HUB)) if name.startswith(HUB) else user_path(name)
    if (folder / "open_clip_config.json").is_file():
        return load_open_clip_folder(name, folder)
    if (folder / "config.json").is_file():
        return load_transformers_tower(name, folder)
    raise _no_tower(name, folder)


def rebuild_tower(description: Mapping[str, Any], place: str | None = None) -> TextTower:
    """The described tower; our own has yet to get its weights. place: where a frozen one is now, if it was moved.

    A description comes from a file, which may not choose what is downloaded: only a place that the user gives may.
    """
    if description["kind"] == own_tower.NAME:
        return rebuild_own_tower(description)
    name = place or str(description["name"])
    with contextlib.nullcontext() if place else from_the_cache_only():
        tower = load_frozen_tower(name)
    if tower.fingerprint != description["fingerprint"]:
        raise UserError(
            f"{name} is not the text model that the images were aligned with (its weights differ); restore that one"
        )
    return tower


def _no_tower(name: str, folder: Path) -> UserError:
    if folder.is_dir():
        return UserError(
            f"{name} is not a text model: it has neither config.json (transformers) nor open_clip_config.json"
        )
    hint = f"; a model of the Hugging Face hub is named {HUB}{name}" if name.count("/") == 1 else ""
    return UserError(
        f"there is no text model {name}{hint}; give own (trained here), a folder of transformers or open_clip, "
        f"{HUB}ORGANISATION/MODEL, or {OPEN_CLIP}MODEL:WEIGHTS"
    )
