"""Memory while a set is measured: images are read, predicted and forgotten, however many there are."""

import pickle
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asterism.data import Sample
from asterism.finetuning.measuring import measured, predictions
from asterism.finetuning.segmentation.maps import Labels, Segmentation
from asterism.finetuning.segmentation.segment import Segment, SegmentationMetric, SegmentConfig
from asterism.images.bad_image import BadImage
from tests.finetuning.tiny import start

CLASSES = ("ground", "sky")


class Counted:
    """A source of blank images that knows how many of them are alive."""

    name, fingerprint, classes = "blank", "0", list(CLASSES)

    def __init__(self, images: int, side: int = 8, bad: Sequence[int] = ()) -> None:
        self._images, self._side, self._bad = images, side, bad
        self.alive = self.most = 0

    def __len__(self) -> int:
        return self._images

    def __getitem__(self, index: int) -> Sample:
        if index in self._bad:
            raise BadImage(str(index), "damaged")
        image = torch.empty(3, self._side, self._side, dtype=torch.uint8)  # not written, so it costs no memory
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(image, self._forget)
        return Sample(image, str(index))

    def label(self, index: int) -> None:
        return None

    def keys(self) -> list[str]:
        return [str(number) for number in range(self._images)]

    def files(self) -> list[Path]:
        return []

    def _forget(self) -> None:
        self.alive -= 1


class Ground(Segment):
    """Says "ground" about everything; every second image is all sky."""

    def predict(self, images: Sequence[Any]) -> list[Segmentation]:
        return [Segmentation(torch.zeros(2, 2, dtype=torch.uint8), CLASSES) for _ in images]

    def truth(self, sample: Sample) -> Labels:
        return Labels(torch.full((2, 2), int(sample.key) % 2, dtype=torch.uint8), CLASSES)


@pytest.fixture(scope="module")
def task() -> Ground:
    return Ground(SegmentConfig(), replace(start(), classes=CLASSES))


def measure(task: Ground, source: Counted) -> tuple[dict[str, float], int]:
    """The values, and the size of what the metric remembers."""
    metric = SegmentationMetric(CLASSES, each_class=False)
    return dict(measured(task, source, metric)), len(pickle.dumps(metric))


def test_memory_does_not_grow_with_the_set(task: Ground) -> None:
    few, many = Counted(64), Counted(640)
    (values, remembered), (others, same) = measure(task, few), measure(task, many)
    assert values == others
    assert values["aacc"] == 50
    assert few.most == 64  # the next batch is read while the last one is still known
    assert many.most <= 65
    assert remembered == same
    assert many.alive == 0


def test_order_and_unreadable_images_are_kept(task: Ground) -> None:
    source = Counted(70, bad=(0, 33, 69))
    batches = list(predictions(task, source))
    assert [each.sample.key for batch in batches for each in batch.found] == [
        str(number) for number in range(70) if number not in (0, 33, 69)
    ]
    assert [each.key for batch in batches for each in batch.bad] == ["0", "33", "69"]
    assert max(len(batch.found) + len(batch.bad) for batch in batches) == 32
    assert measure(task, Counted(70, bad=(0, 33, 69)))[0]["unreadable_images"] == 3
