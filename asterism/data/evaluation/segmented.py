"""Segmented images for evaluations: a training part and a test part."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from asterism.data.evaluation.labelled import DataChoice, Parts
from asterism.data.sources.segmented import SegmentedSource, SegmentedSubset
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.data.sources.source import same_images
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.ops.random import fold, generator


@dataclass(frozen=True)
class SegmentedParts(Parts):
    """Two segmented sources with the same classes and no image in common."""

    train: SegmentedSource
    test: SegmentedSource

    @property
    def classes(self) -> list[str]:
        return self.train.pixel_classes


def open_segmented_parts(choice: DataChoice, holdout: float, seed: int) -> SegmentedParts:
    """Training and test images with masks; `holdout` of the images are held out if the data has no test part."""
    train = open_segmented(choice.path, choice.train_split)
    try:
        test = open_segmented(choice.path, choice.test_split or "test")
    except UnknownSplit:
        if choice.test_split is not None:
            raise
        return _hold_out(train, holdout, seed)
    if same_images(train, test):
        if choice.test_split is not None:
            raise UserError(
                f"training and test images are the same ({train.name}); name another --test-split or --train-split"
            )
        return _hold_out(train, holdout, seed)
    if test.pixel_classes != train.pixel_classes:
        raise UserError(f"{train.name} and {test.name} have different pixel classes")
    return SegmentedParts(train, test)


def drawn_images(images: int, count: int, key: int) -> list[int]:
    """Positions of `count` different images, ascending."""
    return sorted(torch.randperm(images, generator=generator(key))[:count].tolist())


def _hold_out(source: SegmentedSource, share: float, seed: int) -> SegmentedParts:
    if len(source) < 2:
        raise UserError(
            f"{source.name} has one image; an evaluation needs at least one for training and one for testing"
        )
    count = min(len(source) - 1, max(1, round(share * len(source))))
    held_out = drawn_images(len(source), count, fold(seed, len(source)))
    kept = sorted(set(range(len(source))) - set(held_out))
    note = f"{source.name} has no test part: {share:.0%} of its images ({count}) were held out"
    return SegmentedParts(SegmentedSubset(source, kept), SegmentedSubset(source, held_out), (note,))
