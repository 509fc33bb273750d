"""Scenes with captions and hard negatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.data.sources.scenes.draws import Draws
from asterism.data.sources.scenes.stills import Scenes
from asterism.extras.words.sources.captioned import Captioned
from asterism.extras.words.sources.scene_sentences import texts
from asterism.ops.random import fold

_SENTENCES = 0x5E  # separates these draws from those of the scene


def captioned_scenes(settings: Mapping[str, int], split: str) -> Captioned:
    """The scenes of `Scenes(**settings)`, each with a few sentences."""
    values: dict[str, Any] = dict(settings)
    scenes = Scenes(**values, split=split)
    return Captioned(
        scenes, [texts(scenes.scene(i), Draws(fold(scenes.key(i), _SENTENCES))) for i in range(len(scenes))]
    )
