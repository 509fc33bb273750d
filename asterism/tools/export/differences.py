"""How far the outputs of an exported model are from those of the model itself.

Numbers are compared one by one. Labels of pixels may differ where two classes are equally probable, and detections may
change places where they have the same score, or fall on the other side of a threshold; a few of each are tolerated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_TIES = 0.02  # share of labels or detections that may differ
_EVERYTHING = 1.0  # the difference of outputs that do not correspond at all

Outputs = Mapping[str, Tensor]


def largest_difference(expected: Outputs, found: Outputs) -> float:
    """Of all outputs that were found; logits relative to the largest, boxes relative to the farthest edge."""
    if "boxes" in found:
        images = range(len(found["boxes"]))
        differences = [_of_detections(_of_image(expected, image), _of_image(found, image)) for image in images]
    else:
        differences = [_of_output(name, expected[name], output) for name, output in found.items()]
    return largest(differences)


def largest(differences: Sequence[float]) -> float:
    """Unlike `max`, not a number if one of them is not."""
    return math.nan if any(math.isnan(each) for each in differences) else max(differences)


def _of_output(name: str, expected: Tensor, found: Tensor) -> float:
    if not found.is_floating_point():
        return _EVERYTHING if float((expected != found).float().mean()) > _TIES else 0.0
    scale = expected.abs().max().clamp_min(1) if name == "logits" else 1
    return float(((found.float() - expected).abs() / scale).max())


def _of_image(outputs: Outputs, image: int) -> Outputs:
    return {name: output[image] for name, output in outputs.items()}


def _of_detections(expected: Outputs, found: Outputs) -> float:
    """For every detection of an image the nearest one of the same class, in position, size and score."""
    ours, theirs = expected["scores"] > 0, found["scores"] > 0
    tolerated = int(_TIES * int(ours.sum()))
    if abs(int(ours.sum()) - int(theirs.sum())) > tolerated:
        return _EVERYTHING
    if not ours.any():
        return 0.0
    distances = torch.cdist(_rows(expected, ours, expected), _rows(found, theirs, expected), p=float("inf"))
    nearest, place = distances.min(dim=1)
    if "masks" in found:
        masks = expected["masks"][ours] - found["masks"].float()[theirs][place]
        nearest = torch.maximum(nearest, masks.abs().flatten(1).amax(dim=1))
    return float(nearest.sort().values[-1 - tolerated])


def _rows(outputs: Outputs, real: Tensor, scaled_like: Outputs) -> Float[Tensor, "n 6"]:
    edge = scaled_like["boxes"].max().clamp_min(1)
    columns = [outputs["boxes"].float() / edge, outputs["scores"].float()[:, None], outputs["labels"].float()[:, None]]
    return torch.cat(columns, dim=1)[real]
