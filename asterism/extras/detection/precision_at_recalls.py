"""COCO's curve: the best precision from each recall on."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

RECALLS = np.linspace(0, 1, 101)


def precision_at_recalls(
    right: Bool[np.ndarray, "curves n"], wrong: Bool[np.ndarray, "curves n"], objects: Int[np.ndarray, " curves"]
) -> Float[np.ndarray, "curves recalls"]:
    """right, wrong: of detections by descending score; those that are neither are left out. objects: at least 1."""
    count, most = right.shape[1], max(right.shape[1], objects.max(initial=0)) + 1
    hits, misses = right.cumsum(axis=1), wrong.cumsum(axis=1)
    precision = hits / (hits + misses + np.spacing(1))
    best = np.zeros((len(right), count + 1))  # a recall that is never reached has precision 0
    best[:, :count] = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    # Curves one above the other are one sorted row, in which a single search finds the detections of all.
    curve = np.arange(len(right))[:, None]
    found = np.searchsorted((hits + most * curve).ravel(), most * curve + _needed(objects))
    return np.take_along_axis(best, found - count * curve, axis=1)


def _needed(objects: Int[np.ndarray, " curves"]) -> Int[np.ndarray, "curves recalls"]:
    """The least number of objects that is at least each share, where shares are rounded as numbers are."""
    different, inverse = np.unique(objects, return_inverse=True)
    return np.stack([np.searchsorted(np.arange(each + 1) / each, RECALLS) for each in different.tolist()])[inverse]
