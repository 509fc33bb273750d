"""Scenes as a source of labelled images with masks and boxes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from asterism.data.sources import splits
from asterism.data.sources.scenes.layout import Scene, dominant_kind, sample_scene
from asterism.data.sources.scenes.paint import paint
from asterism.data.sources.scenes.shapes import CLASSES
from asterism.data.sources.source import Sample
from asterism.errors import UserError
from asterism.ops import streams
from asterism.ops.random import fold

VERSION = 3  # part of every fingerprint; raise it when the same key draws something else
SMALLEST, LARGEST = 16, 1024  # pixels per side
MOST_OBJECTS = 12
_STREAMS = {
    "train": streams.ScenesSeed.TRAIN,
    "val": streams.ScenesSeed.VAL,
    "test": streams.ScenesSeed.TEST,
}
LEAST_VISIBLE = 0.25  # a thing of which others leave less than this to be seen is not drawn


class Scenes:
    """Drawn scenes; each is a function of (seed, split, index), and looks the same at every size.

    label      class of the dominant thing, the one with the largest visible area; it also is instance 1
    semantic   0 background, 1 + place in `classes` elsewhere
    instances  0 background, 1 … m the things, in the order of `boxes`
    boxes      left, top, right, bottom of what is visible, in pixels; right and bottom are the first beyond it

    `objects` is how many things a scene may hold; the few that would be almost wholly hidden are left out.
    """

    def __init__(
        self,
        size: int = 64,
        count: int = 10_000,
        seed: int = 0,
        split: str = "train",
        objects: tuple[int, int] = (1, 4),
    ) -> None:
        check(size, objects, count=count)
        self.size = size
        self.count = count
        self.seed = seed
        self.split = splits.pick(split, _STREAMS, "scenes")
        self.objects = objects
        self.classes = list(CLASSES)
        self._stream = fold(seed, _STREAMS[self.split])

    @property
    def name(self) -> str:
        return f"scenes/{self.split}"

    @property
    def fingerprint(self) -> str:
        cause = f"scenes {VERSION} {self.size} {self.count} {self.seed} {self.split} {self.objects}"
        return hashlib.blake2b(cause.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        scene = self.scene(index)
        picture = paint(scene, self.size, LEAST_VISIBLE)
        seen, boxes = _boxes(picture.instances, len(scene.things))
        kinds = np.array([0, *(1 + thing.kind for thing in scene.things)], dtype=np.int64)
        numbers = np.zeros(1 + len(scene.things), dtype=np.int64)
        numbers[1 + seen] = np.arange(1, 1 + len(seen))
        return Sample(
            torch.from_numpy(picture.image),
            key=str(index),
            label=scene.things[0].kind,
            semantic=torch.from_numpy(kinds.take(picture.instances)),
            instances=torch.from_numpy(numbers.take(picture.instances)),
            boxes=torch.from_numpy(boxes),
        )

    def label(self, index: int) -> int:
        return dominant_kind(self.key(index))

    def keys(self) -> list[str]:
        return [str(index) for index in range(self.count)]

    def files(self) -> tuple[Path, ...]:
        return ()

    def scene(self, index: int) -> Scene:
        """All numbers of a scene, before it is painted."""
        return sample_scene(self.key(index), self.objects)

    def key(self, index: int) -> int:
        """The key that everything about a scene is drawn from."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        return fold(self._stream, index)


def _boxes(
    instances: UInt8[np.ndarray, "size size"], count: int
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, "m 4"]]:
    """Which of `count` things are seen, counted from 0, and the boxes around what is seen of them."""
    size = len(instances)
    masks = instances == np.arange(1, 1 + count, dtype=np.uint8)[:, None, None]
    rows, columns = masks.any(axis=2), masks.any(axis=1)
    seen = np.flatnonzero(rows.any(axis=1))
    boxes = np.empty((count, 4), dtype=np.float32)
    boxes[:, 0] = columns.argmax(axis=1)
    boxes[:, 1] = rows.argmax(axis=1)
    boxes[:, 2] = size - columns[:, ::-1].argmax(axis=1)
    boxes[:, 3] = size - rows[:, ::-1].argmax(axis=1)
    return seen, boxes[seen]


def check(size: int, objects: tuple[int, int], **counts: int) -> None:
    """Refuse scenes that cannot be drawn."""
    if not SMALLEST <= size <= LARGEST:
        raise UserError(f"scenes: size = {size} pixels; choose {SMALLEST} to {LARGEST} (they look best from 32 to 256)")
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"scenes: {name} = {count}; ask for at least 1")
    if not 1 <= objects[0] <= objects[1] <= MOST_OBJECTS:
        raise UserError(
            f"scenes: objects = {objects}; give the fewest and the most, from 1 to {MOST_OBJECTS}, as in (1, 6)"
        )
