"""Labelled images for segmentation: opened, checked before anything is trained, and numbered as the model's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from asterism.data import Sample, Source
from asterism.data.sources.derived import Wrapped
from asterism.data.sources.own_masks import OwnClasses
from asterism.data.sources.segmented import Segmented, SegmentedSource
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.decode import image_size
from asterism.images.masks import VOID


def open_checked(path: str, split: str | None) -> SegmentedSource:
    """Images to train on. Masks that a user made are all read first; published data sets are trusted."""
    source = open_segmented(path, split)
    if len(source.pixel_classes) < 2:
        raise UserError(
            f"{source.name} has {len(source.pixel_classes)} class ({', '.join(source.pixel_classes)}); segmentation "
            "needs at least two, such as the background and an object"
        )
    if isinstance(source, Segmented) and isinstance(source.read, OwnClasses):
        _check_own(source, source.read)
    return source


def numbered_like(source: Source, classes: Sequence[str]) -> Source:
    """The source with labels that are positions in `classes`."""
    names = pixel_classes(source)
    if tuple(names) == tuple(classes):
        return source
    strange = [name for name in names if name not in classes]
    if strange:
        raise UserError(
            f"{source.name} has the class {strange[0]!r}, which the model was not trained on; its classes are "
            f"{', '.join(classes[:10])}{' …' if len(classes) > 10 else ''}"
        )
    return _Renumbered(source, list(classes), [classes.index(name) for name in names])


def pixel_classes(source: Source) -> list[str]:
    assert isinstance(source, SegmentedSource)
    return source.pixel_classes


class _Renumbered(Wrapped):
    """`numbers` are the new numbers of the source's classes, places in `pixel_classes`."""

    def __init__(self, source: Source, classes: list[str], numbers: Sequence[int]) -> None:
        super().__init__(source)
        self.pixel_classes = classes
        self._table = torch.full((VOID + 1,), VOID, dtype=torch.uint8)
        self._table[: len(numbers)] = torch.tensor(numbers, dtype=torch.uint8)

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        assert sample.semantic is not None
        return replace(sample, semantic=self._table[sample.semantic.long()])


def _check_own(source: Segmented, read: OwnClasses) -> None:
    """Refuse masks that differ from their images in size, and classes without a pixel."""
    found: set[int] = set()
    for item in source.items:
        assert isinstance(item.mask, Path)
        labels = read(item.mask)
        try:
            size = image_size(item.image, item.key)
        except BadImage:  # training skips it, and counts it
            size = labels.shape
        if labels.shape != size:
            raise UserError(
                f"{item.key} has {size[1]}×{size[0]} pixels, but its mask {labels.shape[1]}×{labels.shape[0]}; masks "
                "must be the same size as their images"
            )
        found |= set(np.unique(labels).tolist())
    missing = sorted(set(range(len(source.pixel_classes))) - found)
    if missing:
        names = ", ".join(source.pixel_classes[place] for place in missing[:3])
        raise UserError(
            f"{len(missing)} of the {len(source.pixel_classes)} classes of {source.name} have no pixels: {names}"
            f"{' …' if len(missing) > 3 else ''}; label some, or remove the classes from classes.txt"
        )
