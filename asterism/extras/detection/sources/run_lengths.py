"""Masks as COCO's compressed run lengths: a few bytes each, and the form in which masks are compared.

All of it is faster-coco-eval, so that a mask has exactly the pixels that the evaluation sees.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from asterism.errors import MissingExtra

RunLengths = Mapping[str, Any]  # size: height and width; counts: bytes


def coco_library() -> Any:
    """The package `faster_coco_eval`."""
    try:
        return importlib.import_module("faster_coco_eval")
    except ModuleNotFoundError:
        raise MissingExtra("faster-coco-eval", "detect") from None


def _tools() -> Any:
    return coco_library().mask


def encode(masks: Bool[Tensor, "m h w"]) -> tuple[RunLengths, ...]:
    """The run lengths of each mask."""
    columns_first = np.asfortranarray(masks.permute(1, 2, 0).cpu().numpy().astype(np.uint8))
    return tuple(_tools().encode(columns_first))


def decode(masks: Sequence[RunLengths], size: tuple[int, int]) -> Bool[Tensor, "m h w"]:
    """The pixels of masks of images of this height and width."""
    if not masks:
        return torch.zeros(0, *size, dtype=torch.bool)
    return torch.from_numpy(_tools().decode(list(masks))).permute(2, 0, 1).bool()


def of_polygons(outlines: Sequence[Sequence[float]], size: tuple[int, int]) -> RunLengths:
    """The union of polygons, each x, y, x, y … in pixels."""
    tools = _tools()
    points = [np.array(outline, dtype=np.float64) for outline in outlines]
    if not all(np.isfinite(each).all() for each in points):
        raise ValueError("a polygon with a coordinate that is not a number")
    far = 4.0 * max(size)  # the library draws every step of an outline, however far outside the image
    return tools.merge(tools.frPyObjects([each.clip(-far, far).tolist() for each in points], *size))


def of_counts(counts: Sequence[int], size: tuple[int, int]) -> RunLengths:
    """From plain run lengths, alternately of background and object, column by column."""
    return _tools().frPyObjects({"counts": [int(count) for count in counts], "size": list(size)}, *size)


def uncompressed(text: str) -> list[int]:
    """The run lengths in COCO's compressed text: groups of 5 bits, each number relative to the one before the last."""
    counts: list[int] = []
    place = 0
    while place < len(text):
        value, bits = 0, 0
        while True:
            group = ord(text[place]) - 48
            place += 1
            if not 0 <= group < 64 or bits > 60:
                raise ValueError("compressed run lengths with a character that is not allowed")
            value |= (group & 31) << bits
            bits += 5
            if not group & 32:
                break
        if group & 16:
            value -= 1 << bits
        counts.append(value + counts[-2] if len(counts) > 2 else value)
    return counts


def areas(masks: Sequence[RunLengths]) -> Float[Tensor, " m"]:
    """Pixels of each mask."""
    return torch.tensor([float(area) for area in _tools().area(list(masks))] if masks else [])
