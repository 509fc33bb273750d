"""Patch tokens of segmented images with the classes of their pixels, shared by the segmentation protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.data.sources.segmented import OfOneSize, Resize, SegmentedBatch, SegmentedSource
from asterism.errors import UserError
from asterism.features.encoding import Workers
from asterism.features.extract import image_rows
from asterism.features.rows import Stored
from asterism.images.masks import VOID
from asterism.nn.encoder import Encoder
from asterism.ops.patch_labels import class_counts, majority_labels, mode_labels, soft_labels

PatchLabels = Literal["majority", "mode", "soft"]
Grid = tuple[int, int]

_CLASSES = 32  # upsampled at a time


@torch.no_grad()
def tokens(encoder: Encoder, images: UInt8[Tensor, "b 3 h w"], layers: int) -> tuple[Float[Tensor, "b n d"], Grid]:
    """Patch tokens of the last blocks, concatenated along the channels, and their grid."""
    found = encoder.layers(images, layers)
    if any(each.grid != found[-1].grid for each in found):
        same = sum(each.grid == found[-1].grid for each in found)
        raise UserError(
            f"the last {layers} layers of {encoder.backbone.architecture.name} have patches of different sizes, which "
            f"cannot be concatenated; choose layers={same} or fewer"
        )
    return torch.cat([each.patches for each in found], dim=-1), found[-1].grid


def labelled_tokens(
    encoder: Encoder,
    source: SegmentedSource,
    resize: Resize,
    *,
    layers: int,
    patch_labels: PatchLabels,
    batch_size: int,
    workers: Workers,
) -> Stored:
    """Training tokens: `tokens` (unit length, half precision) and `labels` of all patches that are not void."""

    def rows(batch: SegmentedBatch) -> dict[str, list[Tensor]]:
        patches, grid = tokens(encoder, batch.images, layers)
        labels = _labels(batch, grid, len(source.pixel_classes), patch_labels)
        known = torch.ones(labels.shape[:2], dtype=torch.bool) if patch_labels == "soft" else labels != VOID
        unit = F.normalize(patches.float(), dim=-1).half().cpu()
        pairs = list(zip(unit, labels, known, strict=True))
        return {"tokens": [u[k] for u, _, k in pairs], "labels": [each[k] for _, each, k in pairs]}

    identity = {"rows": "labelled tokens", "layers": layers, "labels": patch_labels}
    return _kept(encoder, source, resize, identity, rows, batch_size, workers)


def tokens_and_masks(
    encoder: Encoder,
    source: SegmentedSource,
    resize: Resize,
    *,
    layers: int,
    batch_size: int,
    workers: Workers,
    unit: bool = False,
) -> Stored:
    """For every image: all `tokens` in half precision, the majority `labels` of its patches, its flattened `mask`, and
    in `sizes` the rows and columns of patches and mask."""

    def rows(batch: SegmentedBatch) -> dict[str, list[Tensor]]:
        patches, grid = tokens(encoder, batch.images, layers)
        vectors = (F.normalize(patches.float(), dim=-1) if unit else patches).half().cpu()
        return {
            "tokens": list(vectors),
            "labels": list(_labels(batch, grid, len(source.pixel_classes), "majority")),
            "mask": [mask.flatten() for mask in batch.full_masks],
            "sizes": [torch.tensor([[*grid, *mask.shape]], dtype=torch.int32) for mask in batch.full_masks],
        }

    identity = {"rows": "tokens and masks", "layers": layers, "unit": unit}
    return _kept(encoder, source, resize, identity, rows, batch_size, workers)


def sizes_of(images: Stored, index: int) -> tuple[Grid, Grid]:
    """Rows and columns of an image's patches, and of its mask."""
    rows, columns, height, width = images.of("sizes", index)[0].tolist()
    return (rows, columns), (height, width)


def mask_of(images: Stored, index: int) -> UInt8[Tensor, "h w"]:
    return images.of("mask", index).view(sizes_of(images, index)[1])


def pixels_from_patches(values: Float[Tensor, "n c"], grid: Grid, size: Grid) -> Int[Tensor, "h w"]:
    """The best class of every pixel (the first in case of a tie), after bilinear upsampling of the patch scores.

    Classes that cannot win are skipped, and `_CLASSES` are upsampled at a time, so memory does not grow with the number
    of classes.
    """
    reached = values.mean(1).min()  # a pixel mixes patches, so its best class has at least the smallest patch mean
    wanted = (~(values.amax(0) < reached)).nonzero()[:, 0]  # all classes if a head diverged to NaN
    maps = values[:, wanted].float().reshape(1, *grid, -1).permute(0, 3, 1, 2)  # channels last, the fastest to upsample
    best: Tensor | None = None
    found = torch.empty(size, dtype=torch.int64, device=values.device)
    for first in range(0, len(wanted), _CLASSES):
        large = F.interpolate(maps[:, first : first + _CLASSES], size, mode="bilinear", align_corners=False)[0]
        value, place = large.max(0)  # several times faster than argmax
        better = torch.ones_like(value, dtype=torch.bool) if best is None else value > best
        found = torch.where(better, place + first, found)
        best = value if best is None else torch.maximum(best, value)
    return wanted[found]


def _labels(batch: SegmentedBatch, grid: Grid, classes: int, rule: PatchLabels) -> Tensor:
    """[b, n], or [b, n, classes] for soft labels."""
    height, width = batch.masks.shape[1:]
    counts = class_counts(batch.masks, (height // grid[0], width // grid[1]), classes, VOID).flatten(1, 2)
    if rule == "soft":
        return soft_labels(counts)
    return (majority_labels if rule == "majority" else mode_labels)(counts, VOID).to(torch.uint8)


def _kept(
    encoder: Encoder,
    source: SegmentedSource,
    resize: Resize,
    identity: Mapping[str, Any],
    rows: Callable[[SegmentedBatch], dict[str, list[Tensor]]],
    batch_size: int,
    workers: Workers,
) -> Stored:
    def of_all(batches: list[SegmentedBatch]) -> dict[str, list[Tensor]]:
        parts = [rows(batch) for batch in batches]
        return {name: [row for part in parts for row in part[name]] for name in parts[0]}

    whole = {**identity, "transform": repr(resize)}
    return image_rows(encoder, source, OfOneSize(resize), of_all, whole, batch_size=batch_size, workers=workers)
