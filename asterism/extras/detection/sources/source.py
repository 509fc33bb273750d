"""The interface of sources whose images have objects, and what an object is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asterism.data.sources.derived import Wrapped
from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.extras.detection.sources.run_lengths import RunLengths
from asterism.images.decode import decode

_FIX = "correct or remove it, or leave out all such boxes with task.flawed_boxes=leave-out"


@dataclass(frozen=True)
class Objects:
    """The objects of one image, in its pixels."""

    boxes: Float[Tensor, "m 4"]  # left, top, right, bottom edges; a box of one pixel has sides of length 1
    labels: Int[Tensor, " m"]  # places in the classes of the source
    crowd: Bool[Tensor, " m"]  # a region with many objects of the class: neither learned nor counted
    areas: Float[Tensor, " m"]  # square pixels, as the annotation states them: COCO's sizes small, medium, large
    masks: tuple[RunLengths, ...] | None  # None: the data has boxes only

    @classmethod
    def none(cls, masks: bool) -> Objects:
        """No objects, in data with or without masks."""
        empty = torch.zeros(0)
        return cls(torch.zeros(0, 4), empty.long(), empty.bool(), empty, () if masks else None)


@dataclass(frozen=True)
class SampleWithObjects(Sample):
    """A decoded image with its objects."""

    objects: Objects = field(default_factory=lambda: Objects.none(masks=False))


@runtime_checkable
class ObjectSource(Source, Protocol):
    """A source whose samples are `SampleWithObjects`; `classes` are those of objects, and images have no label."""

    @property
    def has_masks(self) -> bool: ...

    def class_counts(self) -> list[int]:
        """Objects of every class, without crowds, known without decoding images."""
        ...


@dataclass(frozen=True)
class AnnotatedImage:
    """An image file and the place of its annotations."""

    key: str  # path relative to the folder that the user gave
    path: Path
    size: tuple[int, int] | None  # height and width as annotated; None: not stated
    objects: Objects


class AnnotatedImages:
    """Images with annotations that were read and checked before."""

    def __init__(self, name: str, images: Sequence[AnnotatedImage], classes: Sequence[str], files: Iterable[Path]):
        if not images:
            raise UserError(f"{name} has no images")
        if not any(len(image.objects.labels) for image in images):
            raise UserError(f"{name} has {len(images)} images but not a single box; detection needs annotated objects")
        self.name = name
        self.images = list(images)
        self.classes: list[str] = list(classes)
        self.has_masks = all(image.objects.masks is not None for image in images)
        self._files = list(files)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b("\n".join([self.name, *self.classes]).encode(), digest_size=8)
        for image in self.images:
            objects = image.objects
            digest.update(f"\n{image.key} {objects.boxes.tolist()} {objects.labels.tolist()}".encode())
            for mask in objects.masks or ():
                digest.update(mask["counts"])
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> SampleWithObjects:
        if not 0 <= index < len(self):
            raise IndexError(index)
        found = self.images[index]
        image = decode(found.path, found.key)
        size = (image.shape[1], image.shape[2])
        if found.size is not None and found.size != size:
            raise UserError(
                f"{found.key} has {size[1]}×{size[0]} pixels, but its annotations are for {found.size[1]}×"
                f"{found.size[0]}; use the image that was annotated"
            )
        return SampleWithObjects(image, found.key, objects=found.objects)

    def label(self, index: int) -> None:
        return None

    def keys(self) -> list[str]:
        return [image.key for image in self.images]

    def files(self) -> Iterable[Path]:
        """Images and annotation files."""
        yield from (image.path for image in self.images)
        yield from self._files

    def class_counts(self) -> list[int]:
        counts = torch.zeros(len(self.classes), dtype=torch.int64)
        for image in self.images:
            labels = image.objects.labels[~image.objects.crowd]
            counts += torch.bincount(labels, minlength=len(self.classes))
        return counts.tolist()


class RelabelledObjects(Wrapped):
    """The images of a source under the class numbers of another one: `numbers` are places in `names`."""

    def __init__(self, source: Source, names: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(source)
        self._names, self._numbers = list(names), torch.tensor(numbers, dtype=torch.int64)

    @property
    def classes(self) -> list[str]:
        return self._names

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        assert isinstance(sample, SampleWithObjects)
        return replace(sample, objects=replace(sample.objects, labels=self._numbers[sample.objects.labels]))


class FlawedBox(UserError):
    """A box that cannot be learned: outside its image, or without area."""


def usable_box(
    box: Sequence[float], size: tuple[int, int] | None, where: str, leave_out: bool
) -> tuple[float, float, float, float] | None:
    """The box as `checked_box` returns it; one that is flawed is an error, or None if such boxes are to be left out."""
    try:
        return checked_box(box, size, where)
    except FlawedBox:
        if leave_out:
            return None
        raise


def checked_box(box: Sequence[float], size: tuple[int, int] | None, where: str) -> tuple[float, float, float, float]:
    """A box as left, top, right, bottom; raises for one without area or outside the image.

    An annotation may reach beyond the border by a pixel or two of rounding; it is cut there.
    """
    left, top, right, bottom = (float(value) for value in box)
    if not all(abs(value) < 1e7 for value in (left, top, right, bottom)):  # also refuses nan
        raise FlawedBox(f"{where} has the box {_shown(box)}, which is not in pixels")
    if size is not None:
        height, width = size
        slack = 2 + 0.01 * max(size)
        if left < -slack or top < -slack or right > width + slack or bottom > height + slack:
            raise FlawedBox(
                f"{where} has the box {_shown(box)} (left, top, right, bottom), which is outside its image of "
                f"{width}×{height} pixels; {_FIX}"
            )
        left, right = max(0.0, left), min(float(width), right)
        top, bottom = max(0.0, top), min(float(height), bottom)
    if right <= left or bottom <= top:
        raise FlawedBox(f"{where} has the box {_shown(box)} (left, top, right, bottom), which has no area; {_FIX}")
    return left, top, right, bottom


def _shown(box: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in box) + "]"
