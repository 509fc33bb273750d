"""Overlaps of boxes and masks: the very numbers of pycocotools."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asterism.extras.detection.overlaps import box_overlaps, mask_overlaps
from asterism.extras.detection.sources.run_lengths import coco_masks, encode, quiet_coco

CROWD = np.array([False, True, False, True])


@pytest.mark.parametrize("grid", [1, 30])
def test_boxes(grid: int) -> None:
    draw = np.random.default_rng(0)
    first = (grid * np.round(draw.uniform(0, 300 / grid, (60, 2)), 0 if grid > 1 else 4)).astype(np.float32)
    sides = grid * draw.integers(0, 4, (60, 2)) if grid > 1 else draw.uniform(0, 200, (60, 2))
    boxes = np.concatenate([first, (first + sides).astype(np.float32)], axis=1).astype(np.float64)
    extents = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    found, crowd = box_overlaps(boxes[4:], boxes[:4], CROWD), CROWD.astype(int).tolist()
    with quiet_coco():
        assert np.array_equal(found, coco_masks().iou(extents[4:], extents[:4], crowd))
    assert 0 < (found > 0).mean() < 1
    assert box_overlaps(boxes[:0], boxes, np.zeros(60, dtype=bool)).shape == (0, 60)
    assert box_overlaps(boxes, boxes[:0], CROWD[:0]).shape == (60, 0)


def test_masks_of_one_class() -> None:
    masks = encode(torch.rand(10, 30, 40, generator=torch.Generator().manual_seed(0)) < 0.4)
    labels, true_labels = np.array([0, 1, 1, 2, 0, 4]), np.array([1, 0, 3, 1])
    found = mask_overlaps(masks[4:], labels, masks[:4], true_labels, CROWD)
    with quiet_coco():
        whole = coco_masks().iou(list(masks[4:]), list(masks[:4]), CROWD.astype(int).tolist())
    assert np.array_equal(found, np.where(labels[:, None] == true_labels, whole, 0))
    assert mask_overlaps((), labels[:0], masks[:4], true_labels, CROWD).shape == (0, 4)
    assert mask_overlaps(masks[4:], labels, (), true_labels[:0], CROWD[:0]).shape == (6, 0)
