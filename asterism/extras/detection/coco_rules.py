"""COCO's rules: which detections count as right and which as wrong, for every overlap and size asked for.

In an image, the detections of a class choose by descending score. Each takes the object that it overlaps most, of those
that are still free and that it overlaps enough. Objects of another size and crowds are chosen only if nothing else can
be, and then the detection counts as neither right nor wrong. A crowd stays free. Without an object, a detection is
wrong, unless it is itself of another size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

OVERLAPS = np.linspace(0.5, 0.95, 10)  # least that a detection has to overlap its object
SIZES = {"all": (0, 1e10), "small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}  # areas in pixels
MOST = 100  # detections of a class in an image


@dataclass(frozen=True)
class Pairs:
    """Detections and objects of an image and class that overlap enough for the least of `OVERLAPS`."""

    detections: Int[np.ndarray, " p"]
    objects: Int[np.ndarray, " p"]
    ranks: Int[np.ndarray, " p"]  # of the detection, by descending score among those of its image and class
    overlaps: Float[np.ndarray, " p"]


def sized(areas: Float[np.ndarray, " n"]) -> Bool[np.ndarray, "n sizes"]:
    """Which of `SIZES` each area has; those on a border have two."""
    least, most = np.array(list(SIZES.values())).T
    return (areas[:, None] >= least) & (areas[:, None] <= most)


def right_and_wrong(
    pairs: Pairs,
    detections: Bool[np.ndarray, "n sizes"],
    objects: Bool[np.ndarray, "m sizes"],
    crowd: Bool[np.ndarray, " m"],
) -> tuple[Bool[np.ndarray, "n sizes overlaps"], Bool[np.ndarray, "n sizes overlaps"]]:
    """detections, objects: the sizes they have.

    Detections of one rank are of different images or classes, so they choose at once.
    """
    order = np.lexsort((pairs.objects, pairs.overlaps, pairs.detections, pairs.ranks))
    chosen, choosing, ranks = pairs.objects[order], pairs.detections[order], pairs.ranks[order]
    enough = (pairs.overlaps[order, None] >= OVERLAPS)[:, None]
    # The preferred object has the largest number: those that count first, then the larger overlap, then the later one.
    priority = 1 + np.arange(len(order))[:, None] + len(order) * (objects & ~crowd[:, None])[chosen]
    free = np.ones((*objects.shape, len(OVERLAPS)), dtype=bool)
    right = np.zeros((*detections.shape, len(OVERLAPS)), dtype=bool)
    wrong = np.repeat(detections[..., None], len(OVERLAPS), axis=2)
    edges = np.searchsorted(ranks, np.arange(ranks[-1] + 2 if len(ranks) else 1))
    for first, last in pairwise(edges.tolist()):
        if first == last:
            continue
        among, by = chosen[first:last], choosing[first:last]
        candidates = priority[first:last, :, None] * (enough[first:last] & free[among])
        starts = np.flatnonzero(np.diff(by, prepend=-1))
        best = np.maximum.reduceat(candidates, starts)
        taken = (candidates == np.repeat(best, np.diff(starts, append=len(by)), axis=0)) & (candidates > 0)
        free[among] &= ~taken | crowd[among, None, None]
        right[by[starts]] = best > len(order)
        wrong[by[starts]] &= best == 0
    return right, wrong
