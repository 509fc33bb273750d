"""Boxes and masks follow the pixels through flips, crops and sizes, and draws depend on an image's key alone."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.extras.detection.images import (
    Labelled,
    ObjectImages,
    SizesConfig,
    cropped,
    fitted,
    flipped,
    learnable,
    resolved_canvas,
)
from tests.extras.detection.drawn import SAMPLES, drawn_sample

PLAIN: Any = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "masks": True}


def bright_box(image: Tensor, channel: int) -> list[int]:
    """The edges of the bright pixels of a channel."""
    rows, columns = (image[channel] > 125).nonzero(as_tuple=True)
    return [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]


def assert_true(found: Labelled, slack: float = 0) -> None:
    """Every box and mask is where its bright rectangle is."""
    assert found.masks is not None
    for box, label, mask in zip(found.boxes, found.labels.tolist(), found.masks, strict=True):
        drawn = torch.tensor(bright_box(found.image, label), dtype=torch.float32)
        torch.testing.assert_close(box, drawn, atol=slack, rtol=0)
        rows, columns = mask.nonzero(as_tuple=True)
        edges = [int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1]
        torch.testing.assert_close(torch.tensor(edges, dtype=torch.float32), drawn, atol=slack, rtol=0)


def test_boxes_and_masks_follow_flips_and_crops() -> None:
    found = learnable(SAMPLES[3], masks=True)
    assert_true(found)
    assert_true(flipped(found))
    part = cropped(found, 4, 6, 20, 22)
    assert part.image.shape == (3, 20, 22)
    assert_true(part)
    assert_true(flipped(part))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shorter": (20, 30)},
        {"jitter": (0.4, 2.0)},
        {"crop": 1.0, "crop_sides": (14, 24), "crop_shorter": (28, 40)},
    ],
    ids=["fill", "shorter", "jitter", "crop"],
)
def test_every_augmentation_keeps_boxes_on_their_objects(changes: dict[str, Any]) -> None:
    make = ObjectImages(SizesConfig(**changes), (40, 40), **PLAIN)
    found = learnable(drawn_sample(0, [(4, 6, 20, 24)]), masks=True)
    flips = 0
    for key in range(12):
        made = make.augmented(found, key)
        assert made.image.shape[1] <= 40
        assert made.image.shape[2] <= 40
        assert_true(made, slack=2.0)  # both sizes changed: half a pixel of the original each time
        flips += int(torch.equal(make.augmented(found, key).image, made.image))
    assert flips == 12


def test_a_batch_is_a_function_of_keys_and_padded_to_the_canvas() -> None:
    make = ObjectImages(SizesConfig(jitter=(0.5, 2.0)), (32, 48), **PLAIN)
    state = torch.random.get_rng_state()
    first = make(SAMPLES[:2], [5, 6])
    again = pickle.loads(pickle.dumps(make))(SAMPLES[1::-1], [6, 5])
    assert first.images.shape == (2, 3, 32, 48)
    assert torch.equal(first.images, again.images.flip(0))
    assert torch.equal(first.truths[0]["boxes"], again.truths[1]["boxes"])
    height, width = first.truths[0]["size"]
    assert not first.images[0, :, height:].any()
    assert not first.images[0, :, :, width:].any()
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(first.images, make(SAMPLES[:2], [7, 8]).images)


def test_sizes_fit_the_canvas_without_changing_the_aspect() -> None:
    assert fitted((480, 640), (1344, 1344), 800) == (800, 1067)
    assert fitted((300, 1200), (1344, 1344), 800) == (336, 1344)
    assert fitted((480, 640), (64, 64), None) == (48, 64)
    assert resolved_canvas(SizesConfig(), 224, 32) == (640, 640)
    assert resolved_canvas(SizesConfig(), 64, 32) == (64, 64)
    assert resolved_canvas(SizesConfig(canvas=(100, 65)), 64, 32) == (128, 96)


def test_crowds_are_not_learned() -> None:
    from dataclasses import replace

    sample = SAMPLES[0]
    crowd = replace(sample, objects=replace(sample.objects, crowd=torch.tensor([False, True])))
    found = learnable(crowd, masks=True)
    assert found.labels.tolist() == [0]
    assert found.masks is not None
    assert len(found.masks) == 1
