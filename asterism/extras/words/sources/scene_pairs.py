"""Pairs of scenes that differ in one respect, with a sentence each that the other makes false.

left-right, above-below   the second picture is the first one mirrored: the same things, in exchanged places
colour                    the two things exchange what they are made of
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from asterism.data.sources.scenes.layout import Scene, sample_scene
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.stills import LEAST_VISIBLE, VERSION, Scenes
from asterism.data.sources.source import Sample
from asterism.extras.words.sources.captioned import Captioned, Texts
from asterism.extras.words.sources.scene_captions import Seen, look, relations_of
from asterism.ops import streams
from asterism.ops.random import fold

_CATEGORIES = ("left-right", "above-below", "colour")
_AXIS = {"left-right": 2, "above-below": 1}  # of a picture that is mirrored
_RELATIONS = {"left-right": ("left of", "right of"), "above-below": ("above", "below")}


@dataclass(frozen=True)
class _Pair:
    scene: Scene
    other: Scene
    axis: int | None  # mirrored in the other picture
    sentences: tuple[str, str]


class PairedScenes:
    """Pictures 2i and 2i + 1 are a pair; each is a function of (seed, split, i)."""

    classes = None

    def __init__(self, scenes: Scenes) -> None:
        self._scenes = scenes
        self.pairs = [self._find(number) for number in range(len(scenes))]

    @property
    def name(self) -> str:
        return f"{self._scenes.name} pairs"

    @property
    def fingerprint(self) -> str:
        cause = f"pairs {VERSION} {self._scenes.fingerprint}"
        return hashlib.blake2b(cause.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return 2 * len(self.pairs)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        pair = self.pairs[index // 2]
        image = self._painted(pair.other if index % 2 else pair.scene)
        if index % 2 and pair.axis is not None:
            image = image.flip(pair.axis)
        return Sample(image, self.keys()[index])

    def label(self, index: int) -> int | None:
        return None

    def keys(self) -> list[str]:
        return [f"{number}{side}" for number in range(len(self.pairs)) for side in "ab"]

    def files(self) -> tuple[Path, ...]:
        return ()

    def _painted(self, scene: Scene) -> UInt8[Tensor, "3 s s"]:
        return torch.from_numpy(paint(scene, self._scenes.size, LEAST_VISIBLE).image)

    def _find(self, number: int) -> _Pair:
        """The first scene of the pair's draws in which its category can be shown."""
        category, attempt = category_of(number), 0
        while True:
            scene = sample_scene(fold(self._scenes.key(number), streams.Scene.PAIRS, attempt), (2, 2))
            pair = _recoloured(scene) if category == "colour" else _moved(scene, category)
            if pair is not None:
                return pair
            attempt += 1


def scene_pairs(settings: Mapping[str, int], split: str) -> Captioned:
    """As many pairs as `settings` count scenes."""
    values: dict[str, Any] = dict(settings)
    source = PairedScenes(Scenes(**values, split=split))
    return Captioned(
        source,
        [
            Texts((sentence,), pair=str(number), category=category_of(number))
            for number, pair in enumerate(source.pairs)
            for sentence in pair.sentences
        ],
    )


def category_of(number: int) -> str:
    return _CATEGORIES[number % len(_CATEGORIES)]


def _moved(scene: Scene, category: str) -> _Pair | None:
    found = _two(scene)
    if found is None:
        return None
    a, b = found
    relation = next((word for word in relations_of(a, b) if word in _RELATIONS[category]), None)
    if relation is None:
        return None
    sentences = (f"{a.coloured} {relation} {b.coloured}", f"{b.coloured} {relation} {a.coloured}")
    return _Pair(scene, scene, _AXIS[category], sentences)


def _recoloured(scene: Scene) -> _Pair | None:
    found = _two(scene)
    if found is None or found[0].colour == found[1].colour:
        return None
    a, b = found
    first, second = scene.things
    things = (first._replace(surface=second.surface), second._replace(surface=first.surface))
    sentences = (f"{a.coloured} and {b.coloured}", f"{a.named(colour=b.colour)} and {b.named(colour=a.colour)}")
    return _Pair(scene, scene._replace(things=things), None, sentences)


def _two(scene: Scene) -> tuple[Seen, Seen] | None:
    """Both things of the scene, if they can be seen and are of different kinds."""
    things = look(scene)
    if len(things) != 2 or things[0].kind == things[1].kind:
        return None
    return things[0], things[1]
