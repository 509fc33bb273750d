"""Short videos of scenes in which things move, turn and pass behind each other, with masks that keep their identity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from asterism.data.sources.scenes.draws import Draws
from asterism.data.sources.scenes.layout import Scene, Thing, sample_scene
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.scenes.stills import VERSION, check
from asterism.ops import streams
from asterism.ops.random import fold

_LEAST_VISIBLE = 0.4  # of a thing in the first frame, from which its mask is followed
_FASTEST = 0.02  # sides of the picture per frame


@dataclass(frozen=True)
class Clip:
    """One video."""

    frames: UInt8[Tensor, "t 3 h w"]
    # 0 background; a thing has the same number in every frame, and is seen in the first
    instances: Int64[Tensor, "t h w"]
    classes: tuple[int, ...]  # class of instance 1, 2, …, a place in `SceneVideos.classes`
    key: str


class SceneVideos:
    """Drawn videos; each is a function of (seed, index), and looks the same at every size."""

    def __init__(
        self, size: int = 64, count: int = 100, frames: int = 16, seed: int = 0, objects: tuple[int, int] = (2, 5)
    ) -> None:
        check(size, objects, count=count, frames=frames)
        self.size = size
        self.count = count
        self.frames = frames
        self.seed = seed
        self.objects = objects
        self.classes = list(CLASSES)
        self.name = "scenes/videos"

    @property
    def fingerprint(self) -> str:
        cause = f"scene videos {VERSION} {self.size} {self.count} {self.frames} {self.seed} {self.objects}"
        return hashlib.blake2b(cause.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Clip:
        if not 0 <= index < self.count:
            raise IndexError(index)
        key = fold(self.seed, streams.ScenesSeed.VIDEOS, index)
        scene = _without_hidden(sample_scene(key, self.objects), self.size)
        moments = _moving(scene, fold(key, streams.Scene.MOTION), self.frames)
        pictures = [paint(moment, self.size, least_visible=0) for moment in moments]
        return Clip(
            torch.from_numpy(np.stack([picture.image for picture in pictures])),
            torch.from_numpy(np.stack([picture.instances for picture in pictures]).astype(np.int64)),
            tuple(thing.kind for thing in scene.things),
            key=str(index),
        )


class _Course(NamedTuple):
    """How one thing moves: to and fro on a straight line, swaying and turning. Lengths in sides, angles in radians."""

    to_x: float  # the far end of the line, relative to the start
    to_y: float
    frames_there: float  # how long the way to the far end takes
    sway: float
    turn: float  # at the far end
    swell: float  # share of the radius

    def moved(self, thing: Thing, frame: int) -> Thing:
        phase = math.pi * frame / self.frames_there
        way = (1 - math.cos(phase)) / 2
        aside = self.sway * math.sin(phase)
        return thing._replace(
            x=thing.x + self.to_x * way + aside,
            y=thing.y + self.to_y * way - aside,
            angle=thing.angle + self.turn * way,
            radius=thing.radius * (1 + self.swell * way),
        )


def _moving(scene: Scene, key: int, frames: int) -> Iterator[Scene]:
    """The scene as it is in each frame; frame 0 is the scene itself."""
    draw = Draws(key)
    courses = [_course(draw, thing, thing.radius if place == 0 else 0.05) for place, thing in enumerate(scene.things)]
    pan_x, pan_y = draw.between(-0.006, 0.006), draw.between(-0.006, 0.006)  # of the background, per frame
    ground = scene.background
    for frame in range(frames):
        things = [course.moved(thing, frame) for thing, course in zip(scene.things, courses, strict=True)]
        yield scene._replace(
            background=ground._replace(x=ground.x + pan_x * frame, y=ground.y + pan_y * frame), things=tuple(things)
        )


def _course(draw: Draws, thing: Thing, border: float) -> _Course:
    to_x = draw.between(border, 1 - border) - thing.x
    to_y = draw.between(border, 1 - border) - thing.y
    # An eased way of length l in n frames is fastest in its middle, with π l / 2 n per frame.
    quickest = math.pi / 2 * math.hypot(to_x, to_y) / _FASTEST
    return _Course(
        to_x,
        to_y,
        frames_there=max(20.0, quickest * draw.between(1.0, 2.0)),
        sway=draw.between(-0.03, 0.03),
        turn=draw.between(-0.9, 0.9),
        swell=draw.between(-0.1, 0.1),
    )


def _without_hidden(scene: Scene, size: int) -> Scene:
    """Only the things that can be seen in the first frame."""
    numbers = np.unique(paint(scene, size, _LEAST_VISIBLE).instances).tolist()
    seen = [number - 1 for number in numbers if number > 0]
    order = tuple(seen.index(place) for place in scene.front_to_back if place in seen)
    return scene._replace(things=tuple(scene.things[place] for place in seen), front_to_back=order)
