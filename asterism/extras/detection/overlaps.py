"""How much detections overlap objects: intersection over union, and for crowds over the area of the detection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from asterism.extras.detection.sources.run_lengths import RunLengths, coco_masks, quiet_coco


def box_overlaps(
    found: Float[np.ndarray, "n 4"], true: Float[np.ndarray, "m 4"], crowd: Bool[np.ndarray, " m"]
) -> Float[np.ndarray, "n m"]:
    """Of left, top, right, bottom; sides are as long as their difference."""
    start, sides = found[:, None, :2], found[:, None, 2:] - found[:, None, :2]
    true_start, true_sides = true[:, :2], true[:, 2:] - true[:, :2]
    # COCO keeps corner and sides, so the far corner is their sum: the order of rounding is part of equal values.
    common = np.minimum(start + sides, true_start + true_sides) - np.maximum(start, true_start)
    shared = np.where((common > 0).all(axis=2), common[..., 0] * common[..., 1], 0.0)
    own, others = sides[..., 0] * sides[..., 1], true_sides[:, 0] * true_sides[:, 1]
    whole = np.where(crowd, own, own + others - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0)


def mask_overlaps(
    found: Sequence[RunLengths],
    labels: Int[np.ndarray, " n"],
    true: Sequence[RunLengths],
    true_labels: Int[np.ndarray, " m"],
    crowd: Bool[np.ndarray, " m"],
) -> Float[np.ndarray, "n m"]:
    """Of masks of one class; 0 for others, whose comparison would be wasted."""
    overlaps = np.zeros((len(found), len(true)))
    for label in set(labels.tolist()) & set(true_labels.tolist()):
        rows, columns = np.flatnonzero(labels == label), np.flatnonzero(true_labels == label)
        masks, objects = [found[row] for row in rows.tolist()], [true[column] for column in columns.tolist()]
        with quiet_coco():
            overlaps[np.ix_(rows, columns)] = coco_masks().iou(masks, objects, crowd[columns].astype(int).tolist())
    return overlaps
