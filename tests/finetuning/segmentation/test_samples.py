"""Training samples: masks follow the pixels, every draw comes from the key, images of any size."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asterism.data import Sample
from asterism.finetuning.segmentation import photometric
from asterism.finetuning.segmentation.samples import SegmentAugmentationConfig, SegmentSamples, resized
from asterism.images.masks import VOID
from tests.finetuning.segmentation.drawn import COLOURS, sample


def maker(size: int = 24, side: int = 24, **settings: Any) -> SegmentSamples:
    config = SegmentAugmentationConfig(**{"photometric": False, **settings})
    return SegmentSamples(config, size, side, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def levels(images: Tensor) -> Tensor:
    return ((images * 0.25 + 0.5) * 255).round()


def agreement(images: Tensor, masks: Tensor) -> float:
    """The share of labelled pixels whose colour is that of their label, up to what interpolation blurs at borders."""
    nearest = torch.stack([(levels(images) - torch.tensor(c)[:, None, None]).abs().sum(1) for c in COLOURS.tolist()])
    here = masks != VOID
    return float((nearest.argmin(0) == masks)[here].float().mean())


@pytest.mark.parametrize(("height", "width"), [(24, 32), (60, 20), (13, 97), (5, 5)])
def test_masks_follow_the_pixels(height: int, width: int) -> None:
    """Drawn shapes keep their colours under any scale, crop and flip; a shift would be seen."""
    batch = maker(40, 48)([sample(n, height, width) for n in range(12)], list(range(12)))
    assert batch.images.shape == (12, 3, 40, 40)
    (masks,) = batch.truths
    right = agreement(batch.images, masks)
    assert right > 0.93
    for axis in (1, 2):
        assert agreement(batch.images, masks.roll(3, dims=axis)) < right - 0.01


def test_at_scale_one_pixels_and_labels_are_those_of_the_file() -> None:
    one = sample(3)
    batch = maker(24, 24, scale=(1.0, 1.0), flip=0.0, largest_class=1.0)([one], [5])
    (masks,) = batch.truths
    assert one.semantic is not None
    places = [left for left in range(9) if torch.equal(masks[0], one.semantic[:, left : left + 24])]
    assert places
    assert any(torch.equal(levels(batch.images)[0], one.image[:, :, p : p + 24].float()) for p in places)


def test_a_flip_mirrors_both() -> None:
    made = [maker(24, 24, scale=(1.0, 1.0), flip=share)([sample(2)], [9]) for share in (0.0, 1.0)]
    assert torch.equal(made[0].images.flip(3), made[1].images)
    assert torch.equal(made[0].truths[0].flip(2), made[1].truths[0])


def test_what_lies_outside_is_void_and_of_the_mean_colour() -> None:
    batch = maker(24, 12, scale=(1.0, 1.0))([sample(1)], [1])
    (masks,) = batch.truths
    assert (masks[0, 12:] == VOID).all()
    assert (masks[0, :12, :16] != VOID).all()
    assert not batch.images[0, :, 12:].any()


def test_samples_are_functions_of_their_keys() -> None:
    make = maker(16, 20, photometric=True)
    parts = [sample(n) for n in range(3)]
    first, again = make(parts, [5, 6, 7]), pickle.loads(pickle.dumps(make))(parts[::-1], [7, 6, 5])
    assert torch.equal(first.images, again.images.flip(0))
    assert torch.equal(first.truths[0], again.truths[0].flip(0))
    assert not torch.equal(first.images, make(parts, [8, 9, 10]).images)


def test_crops_of_one_class_are_drawn_again() -> None:
    """A wide image that is labelled at its right end alone: most crops show one class."""
    mask = torch.zeros(40, 160, dtype=torch.uint8)
    mask[:, 152:] = 1
    wide = Sample(torch.zeros(3, 40, 160, dtype=torch.uint8), "wide", semantic=mask)
    both = {}
    for most in (1.0, 0.75):
        batch = maker(20, 40, scale=(1.0, 1.0), largest_class=most, flip=0.0)([wide] * 60, list(range(60)))
        both[most] = sum(len(each.unique()) > 1 for each in batch.truths[0])
    assert both[0.75] > 2 * both[1.0]


def test_the_shorter_side_is_as_wanted_unless_the_image_is_very_long() -> None:
    assert resized(100, 200, 50) == (50, 100)
    assert resized(30, 20, 40) == (60, 40)
    assert resized(10, 1000, 50) == (2, 200)
    assert resized(1, 5000, 16) == (1, 64)


def test_photometric_changes_are_those_drawn() -> None:
    image = torch.tensor(np.array([[[100, 20, 20]]], dtype=np.uint8)).permute(2, 0, 1)
    never = [0.9] * photometric.DRAWS
    assert torch.equal(photometric.distorted(image, never), image)
    brighter = [0.1, 1.0, *never[2:]]
    assert photometric.distorted(image, brighter).flatten().tolist() == [132, 52, 52]
    for first in (0.1, 0.9):
        contrast = [0.9, 0.9, first, 0.1, 0.0, *never[5:]]
        assert photometric.distorted(image, contrast).flatten().tolist() == [50, 10, 10]
    grey = photometric.distorted(image, [*never[:5], 0.1, 0.0, 0.9, 0.9]).flatten().tolist()
    assert grey[0] - grey[1] == 40
    turned = photometric.distorted(image, [*never[:7], 0.1, 1.0]).flatten().tolist()
    assert turned == [100, 68, 20]  # a tenth of the circle from red: green rises by six tenths of the range
