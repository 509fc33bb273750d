"""The parts of data that an evaluation uses, without an image in common: one to train on and one to test on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from asterism.data.sources.derived import Subset
from asterism.data.sources.folder import Folder
from asterism.data.sources.open import open_source
from asterism.data.sources.segmented import SegmentedSource, SegmentedSubset
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.data.sources.source import Source, same_images
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.ops import streams
from asterism.ops.random import fold, generator

S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class DataChoice:
    """The data the user requested. A split that is None is chosen: train, and test or else val."""

    path: str
    train_split: str | None = None
    test_split: str | None = None


@dataclass(frozen=True)
class Parts:
    """Two sources with no image in common."""

    train: Source
    test: Source
    notes: tuple[str, ...] = ()  # how the parts were chosen, if the data does not define them


@dataclass(frozen=True)
class SegmentedParts(Parts):
    """Two segmented sources with the same classes and no image in common."""

    train: SegmentedSource
    test: SegmentedSource

    @property
    def classes(self) -> list[str]:
        return self.train.pixel_classes


def open_labelled(choice: DataChoice, holdout: float, seed: int) -> Parts:
    """Labelled training and test images.

    If the data has no test part, `holdout` of every class is held out from training. The draw depends only on labels
    and seed, so that every encoder is tested on the same images.
    """
    train = open_source(choice.path, choice.train_split)
    labels = labels_of(train)
    if (test := _test_part(choice, open_source)) is None:
        return _hold_out(train, labels, holdout, seed)
    labels_of(test)
    if same_images(train, test):
        raise UserError(
            f"training and test images are the same ({train.name}); name another --test-split or --train-split"
        )
    return Parts(train, test)


def open_segmented_parts(choice: DataChoice, holdout: float, seed: int) -> SegmentedParts:
    """Training and test images with masks; `holdout` of the images are held out if the data has no test part."""
    train = open_segmented(choice.path, choice.train_split)
    if (test := _test_part(choice, open_segmented)) is None:
        return _hold_out_segmented(train, holdout, seed)
    if same_images(train, test):
        if choice.test_split is not None:
            raise UserError(
                f"training and test images are the same ({train.name}); name another --test-split or --train-split"
            )
        return _hold_out_segmented(train, holdout, seed)
    if test.pixel_classes != train.pixel_classes:
        raise UserError(f"{train.name} and {test.name} have different pixel classes")
    return SegmentedParts(train, test)


def open_unlabelled(choice: DataChoice, holdout: float, seed: int) -> Parts:
    """Training and test images; if the data has no test part, the share `holdout` is held out from training."""
    train = open_source(choice.path, choice.train_split)
    if (test := _test_part(choice, open_source)) is not None:
        return Parts(train, test)
    count = round(holdout * len(train))
    if not 0 < count < len(train):
        raise UserError(f"{train.name} has {len(train)} images, too few to hold {holdout:.0%} of them out for testing")
    order = torch.randperm(len(train), generator=generator(fold(seed, streams.Unlabelled.HELD_OUT))).tolist()
    note = f"{train.name} has no test part: {holdout:.0%} ({count} images) were held out"
    return Parts(Subset(train, sorted(order[count:])), Subset(train, sorted(order[:count])), (note,))


def open_untrained(choice: DataChoice) -> Parts:
    """Images for a measurement that trains nothing: the test part, or all images if the data has none."""
    source = _test_part(choice, open_source)
    source = open_source(choice.path) if source is None else source
    return Parts(source, source, ("nothing is trained: training and test images are the same",))


def _test_part(choice: DataChoice, opened: Callable[[str, str], S]) -> S | None:
    """The part to test on; None if the data has none and the user named none."""
    try:
        return opened(choice.path, choice.test_split or "test")
    except UnknownSplit:
        if choice.test_split is not None:
            raise
        return None


def labels_of(source: Source) -> list[int]:
    """The label of every image, without decoding any."""
    labels = [source.label(index) for index in range(len(source))]
    if source.classes is None or any(label is None for label in labels):
        empty = source.empty_subfolders if isinstance(source, Folder) else []
        cause = f", because its subfolder {empty[0]!r} has no image: remove it or fill it. Otherwise" if empty else ";"
        raise UserError(
            f"{source.name} has no labels, which are needed here{cause} give a folder with one subfolder per class, "
            "shards with .cls entries, or a labelled set from `asterism list datasets`"
        )
    beyond = [label for label in labels if label is not None and not 0 <= label < len(source.classes)]
    if beyond:
        raise UserError(
            f"{source.name} has {len(source.classes)} classes, but {len(beyond)} images have labels outside "
            f"0 … {len(source.classes) - 1}, such as {beyond[0]}; name all classes, or fix the labels"
        )
    return [label for label in labels if label is not None]


def class_balanced(labels: list[int], share: float, seed: int) -> list[int]:
    """Positions of `share` of the images of every class, at least one each: a function of labels, share and seed."""
    return _draw(labels, seed, lambda size: max(1, round(share * size)))


def held_out_places(labels: list[int], share: float, seed: int) -> list[int]:
    """Positions of `share` of every class to test on. At least one image of every class stays in the training part, and
    at least one image of every class with several is in the test part."""
    return _draw(labels, seed, lambda size: min(size - 1, max(1, round(share * size))))


def drawn_images(images: int, count: int, key: int) -> list[int]:
    """Positions of `count` different images, ascending."""
    return sorted(torch.randperm(images, generator=generator(key))[:count].tolist())


def _hold_out(source: Source, labels: list[int], share: float, seed: int) -> Parts:
    held_out = held_out_places(labels, share, seed)
    if not held_out:
        raise UserError(f"{source.name} has one image per class; an evaluation needs at least two of some class")
    kept = sorted(set(range(len(labels))) - set(held_out))
    note = f"{source.name} has no test part: {share:.0%} of every class ({len(held_out)} images) were held out"
    return Parts(Subset(source, kept), Subset(source, held_out), (note,))


def _hold_out_segmented(source: SegmentedSource, share: float, seed: int) -> SegmentedParts:
    if len(source) < 2:
        raise UserError(
            f"{source.name} has one image; an evaluation needs at least one for training and one for testing"
        )
    count = min(len(source) - 1, max(1, round(share * len(source))))
    held_out = drawn_images(len(source), count, fold(seed, len(source)))
    kept = sorted(set(range(len(source))) - set(held_out))
    note = f"{source.name} has no test part: {share:.0%} of its images ({count}) were held out"
    return SegmentedParts(SegmentedSubset(source, kept), SegmentedSubset(source, held_out), (note,))


def _draw(labels: list[int], seed: int, count: Callable[[int], int]) -> list[int]:
    """Positions of `count(size)` images of every class, ascending; `size` is the number of images in the class."""
    places: dict[int, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    chosen = []
    for label, members in places.items():
        order = torch.randperm(len(members), generator=generator(fold(seed, label))).tolist()
        chosen += [members[i] for i in order[: count(len(members))]]
    return sorted(chosen)
