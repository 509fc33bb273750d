"""Short videos of scenes in which things move, turn and pass behind each other, with masks that keep their identity."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from asterism.data.sources.scenes.draws import Draws
from asterism.data.sources.scenes.layout import Scene, Thing, sample_scene
from asterism.data.sources.scenes.limits import VERSION, check_count, check_objects, check_size
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.ops.random import fold

_STREAM = 3  # different from those of the still scenes
_MOTION = 2  # use of a scene's key, different from those of the layout
_LEAST_VISIBLE = 0.4  # of a thing in the first frame, from which its mask is followed
_FASTEST = 0.02  # sides of the picture per frame


@dataclass(frozen=True)
class Clip:
    """One video."""

    frames: UInt8[Tensor, "t 3 h w"]
    instances: Int64[
        Tensor, "t h w"
    ]  # 0 background; a thing has the same number in every frame, and is seen in the first
    classes: tuple[int, ...]  # class of instance 1, 2, …, a place in `SceneVideos.classes`
    key: str


class SceneVideos:
    """Drawn videos; each is a function of (seed, index), and looks the same at every size."""

    def __init__(
        self, size: int = 64, count: int = 100, frames: int = 16, seed: int = 0, objects: tuple[int, int] = (2, 5)
    ) -> None:
        check_size(size)
        check_count(count, "count")
        check_count(frames, "frames")
        check_objects(objects)
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
        key = fold(self.seed, _STREAM, index)
        scene = _without_hidden(sample_scene(key, self.objects), self.size)
        motion = _sample_motion(fold(key, _MOTION), scene)
        pictures = [paint(_at(scene, motion, frame), self.size, least_visible=0) for frame in range(self.frames)]
        return Clip(
            torch.from_numpy(np.stack([picture.image for picture in pictures])),
            torch.from_numpy(np.stack([picture.instances for picture in pictures]).astype(np.int64)),
            tuple(thing.kind for thing in scene.things),
            key=str(index),
        )


@dataclass(frozen=True, slots=True)
class _Course:
    """How one thing moves: to and fro on a straight line, swaying and turning. Lengths in sides, angles in radians."""

    to_x: float  # the far end of the line, relative to the start
    to_y: float
    frames_there: float  # how long the way to the far end takes
    sway: float
    turn: float  # at the far end
    swell: float  # share of the radius


@dataclass(frozen=True, slots=True)
class _Motion:
    courses: tuple[_Course, ...]
    pan_x: float  # of the background, per frame
    pan_y: float


def _without_hidden(scene: Scene, size: int) -> Scene:
    """Only the things that can be seen in the first frame."""
    numbers = np.unique(paint(scene, size, _LEAST_VISIBLE).instances).tolist()
    seen = [number - 1 for number in numbers if number > 0]
    order = tuple(seen.index(place) for place in scene.front_to_back if place in seen)
    return replace(scene, things=tuple(scene.things[place] for place in seen), front_to_back=order)


def _sample_motion(key: int, scene: Scene) -> _Motion:
    draw = Draws(key)
    courses = tuple(
        _course(draw, thing, border=thing.radius if place == 0 else 0.05) for place, thing in enumerate(scene.things)
    )
    return _Motion(courses, draw.between(-0.006, 0.006), draw.between(-0.006, 0.006))


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


def _at(scene: Scene, motion: _Motion, frame: int) -> Scene:
    """The scene as it is in one frame; frame 0 is the scene itself."""
    ground = scene.background
    return replace(
        scene,
        background=replace(ground, x=ground.x + motion.pan_x * frame, y=ground.y + motion.pan_y * frame),
        things=tuple(_moved(thing, course, frame) for thing, course in zip(scene.things, motion.courses, strict=True)),
    )


def _moved(thing: Thing, course: _Course, frame: int) -> Thing:
    phase = math.pi * frame / course.frames_there
    way = (1 - math.cos(phase)) / 2
    aside = course.sway * math.sin(phase)
    return replace(
        thing,
        x=thing.x + course.to_x * way + aside,
        y=thing.y + course.to_y * way - aside,
        angle=thing.angle + course.turn * way,
        radius=thing.radius * (1 + course.swell * way),
    )
