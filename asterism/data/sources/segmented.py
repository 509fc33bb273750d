"""Images with a class for every pixel, and batches of them at multiples of the patch size."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from asterism.data.loader import Loader
from asterism.data.order import each_once
from asterism.data.sources.derived import Subset, Wrapped
from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.images.decode import decode
from asterism.images.masks import VOID, read_labels


@runtime_checkable
class SegmentedSource(Source, Protocol):
    """A source whose samples have `semantic`: positions in `pixel_classes`, or `VOID`."""

    @property
    def pixel_classes(self) -> list[str]: ...


@dataclass(frozen=True)
class Item:
    """An image and the origin of its mask; `key` is its path relative to the folder that the user gave."""

    key: str
    image: Path
    mask: Path | int  # an image of labels, or the number to pass to `draw` of `Segmented`


def check_item(item: Item) -> Item:
    """The item; a UserError if one of its files is missing."""
    for kind, path in (("image", item.image), ("mask", item.mask)):
        if isinstance(path, Path) and not path.is_file():
            raise UserError(f"the {kind} {path} is missing; every image of the list needs its file and its mask")
    return item


class Segmented:
    """Images of a folder with masks, whose values are mapped to `pixel_classes` and `VOID`."""

    classes = None  # of whole images

    def __init__(
        self,
        name: str,
        items: Sequence[Item],
        pixel_classes: Sequence[str],
        labels: NDArray[np.uint8],  # of each value of a mask file; larger values are errors
        draw: Callable[[int], NDArray[np.integer]] | None = None,  # for masks that are not files
        annotations: Path | None = None,  # the file that `draw` reads
        read: Callable[[Path], NDArray[np.integer]] = read_labels,  # the values of a mask file
    ) -> None:
        if not items:
            raise UserError(f"{name} has no images with masks")
        self.name = name
        self.items = list(items)
        self.pixel_classes = list(pixel_classes)
        self._labels = labels
        self._draw = draw
        self._annotations = annotations
        self.read = read

    @cached_property
    def fingerprint(self) -> str:
        parts = [self.name, *self.pixel_classes, *(item.key for item in self.items)]
        return hashlib.blake2b("\n".join(parts).encode() + self._labels.tobytes(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        item = self.items[index]
        image = decode(item.image, item.key)
        raw = self._draw_mask(item.mask) if isinstance(item.mask, int) else self.read(item.mask)
        if raw.shape != image.shape[1:]:
            raise UserError(
                f"{item.key} has {image.shape[2]}×{image.shape[1]} pixels, but its mask {raw.shape[1]}×{raw.shape[0]}; "
                "masks must be the same size as their images"
            )
        return Sample(image, item.key, semantic=torch.from_numpy(self._translated(raw, item)))

    def label(self, index: int) -> None:
        return None

    def keys(self) -> list[str]:
        return [item.key for item in self.items]

    def files(self) -> Iterable[Path]:
        """Images, masks, and the annotation file that masks are drawn from."""
        yield from (path for item in self.items for path in (item.image, item.mask) if isinstance(path, Path))
        if self._annotations is not None:
            yield self._annotations

    def _draw_mask(self, number: int) -> NDArray[np.integer]:
        assert self._draw is not None
        return self._draw(number)

    def _translated(self, raw: NDArray[np.integer], item: Item) -> NDArray[np.uint8]:
        beyond = set(np.unique(raw[raw >= len(self._labels)]).tolist()) - {VOID}
        if beyond:
            raise UserError(
                f"the mask of {item.key} holds the label {max(beyond)}; {self.name} has the labels 0 … "
                f"{len(self._labels) - 1} and {VOID} for void"
            )
        table = np.full(max(VOID, len(self._labels)) + 1, VOID, dtype=np.uint8)
        table[: len(self._labels)] = self._labels
        return table[raw]


class SegmentedScenes(Wrapped):
    """Built-in scenes with the background as a separate class."""

    def __init__(self, scenes: Source) -> None:
        super().__init__(scenes)
        assert scenes.classes is not None
        self.pixel_classes = ["background", *scenes.classes]


class SegmentedSubset(Subset):
    """Some images of a segmented source."""

    def __init__(self, source: SegmentedSource, indices: Sequence[int]) -> None:
        super().__init__(source, indices)
        self.pixel_classes = source.pixel_classes


def identity_labels(classes: int) -> NDArray[np.uint8]:
    """The mapping for mask files that store class numbers directly."""
    return np.arange(classes, dtype=np.uint8)


@dataclass(frozen=True)
class SegmentedBatch:
    """Images of one size with their masks."""

    images: UInt8[Tensor, "b 3 h w"]
    masks: UInt8[Tensor, "b h w"]  # at the size of `images`, nearest neighbour
    full_masks: list[UInt8[Tensor, "_ _"]]  # at their original size


_Pair = tuple[UInt8[Tensor, "3 h w"], UInt8[Tensor, "_ _"]]  # image and mask
Resize = Callable[[int, int], tuple[int, int]]  # from height and width of the file to those of the network's input


@dataclass(frozen=True)
class NearestMultiple:
    """Round both sides to the nearest multiple, after shrinking the longer one to at most `longer_side` pixels."""

    multiple: int
    longer_side: int | None = None

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        scale = 1.0 if self.longer_side is None else min(1.0, self.longer_side / max(height, width))
        rounded = (max(1, round(scale * side / self.multiple)) * self.multiple for side in (height, width))
        rows, columns = rounded
        return rows, columns


@dataclass(frozen=True)
class Square:
    """Resize both sides to `side`, ignoring the aspect ratio."""

    side: int

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        return self.side, self.side


def segmented_batches(
    source: SegmentedSource, resize: Resize, *, batch_size: int, workers: int = 0
) -> Iterator[SegmentedBatch]:
    """Every readable image in order. Consecutive images of equal size share a batch."""
    for loaded in Loader(source, OfOneSize(resize), each_once(len(source), batch_size), workers=workers):
        yield from loaded.made


@dataclass(frozen=True)
class OfOneSize:
    """Makes batches of consecutive images of equal size."""

    resize: Resize

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int] = ()) -> list[SegmentedBatch]:
        return [
            _collated(list(run)) for _, run in itertools.groupby(map(self._sized, samples), lambda pair: pair[0].shape)
        ]

    def _sized(self, sample: Sample) -> _Pair:
        """The image at the size for the network, and its mask as it is."""
        if sample.semantic is None:
            raise UserError(f"{sample.key} has no mask; segmentation needs one per image")
        size = self.resize(sample.image.shape[1], sample.image.shape[2])
        return _resized(sample.image, size), sample.semantic.to(torch.uint8)


def _resized(image: UInt8[Tensor, "3 h w"], size: tuple[int, int]) -> UInt8[Tensor, "3 i j"]:
    if image.shape[1:] == size:
        return image
    return F.interpolate(image[None], size, mode="bicubic", antialias=True)[0]


def _collated(run: list[_Pair]) -> SegmentedBatch:
    images, full_masks = torch.stack([image for image, _ in run]), [mask for _, mask in run]
    size = (images.shape[2], images.shape[3])
    masks = torch.cat([F.interpolate(mask[None, None], size, mode="nearest-exact") for mask in full_masks])
    return SegmentedBatch(images, masks[:, 0], full_masks)
