"""Segments images from a few labelled examples, without training the network: `asterism segment`.

Every patch of a new image gets the probability of each class from the patches of the examples: by a vote of the nearest
ones, or by a small head trained on them (`asterism.tools.patch_labellers`). The probabilities are upsampled bilinearly,
and the class of a pixel is the most probable one. Each example is also segmented with the help of the others
(`asterism.tools.leave_one_out`), which chooses head and balance of the classes, and says what IoU to expect.

Examples are images and masks as `asterism.data.sources.own_masks` reads them; void pixels are ignored.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import UInt8
from torch import Tensor

from asterism.data.sources.davis import list_frames
from asterism.data.sources.own_masks import find_pairs
from asterism.errors import UserError
from asterism.features.mask_tracking import FrameSize, TooManyPatches, input_size, patch_features
from asterism.files import filling, write_text
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode
from asterism.images.masks import save_mask
from asterism.images.write import save_levels, save_picture
from asterism.nn.encoder import Encoder
from asterism.ops.propagation import largest_share, largest_upsampled
from asterism.ranges import Count, Positive, Share
from asterism.tools.labelled_patches import LabelledPatches, remember
from asterism.tools.leave_one_out import BALANCES, Estimate, estimate
from asterism.tools.output_folder import file_names
from asterism.tools.patch_labellers import Balanced, HeadName, Labeller, frequencies, labeller
from asterism.viz.bar import Bar
from asterism.viz.mask_overlay import overlay

_ROWS_AT_ONCE = 256
_USUAL_BALANCE = 0.5  # where nothing can be estimated
_MOST_DRAWN = 24_000_000  # pixels of an overlay
_POOR = 0.25  # expected IoU below which a class gets a warning
_DARKEST = 0.35  # brightness of a pixel without any certainty, in the pictures


class Segmenting(FrameSize):
    """Settings of segmentation from examples."""

    head: Literal["auto", "vote", "trained"] = "auto"  # auto: the better one on examples that are left out
    balance: Share | Literal["auto"] = "auto"  # 0: classes as frequent as in the examples, 1: all equally frequent
    k: Count = 30  # nearest patches of the examples that vote
    temperature: Positive = 0.07  # of the vote


@dataclass(frozen=True)
class Segmented:
    """The class of every pixel, as numbered in the masks of the examples, and its probability, from 0 to 255."""

    mask: UInt8[Tensor, "h w"]
    confidence: UInt8[Tensor, "h w"]


@dataclass(frozen=True)
class SegmentedFolder:
    """What was written, and how good it should be."""

    folder: Path
    images: int
    examples: int
    classes: list[int]
    head: HeadName
    estimate: Estimate | None  # None: one example, or none that have a class in common
    confidence: dict[str, float] = field(default_factory=dict)  # mean probability of the chosen classes, by image
    skipped: list[BadImage] = field(default_factory=list)  # images that could not be read

    def summary(self) -> str:
        lines = [f"{self.images} images from {self.examples} examples of {len(self.classes)} classes: {self.folder}"]
        if self.estimate is not None:
            values = {number: value for number, value in self.estimate.iou.items() if value is not None}
            by_class = ", ".join(f"{number}: {value:.0%}" for number, value in values.items())
            mean = f"{self.estimate.mean:.0%} ± {self.estimate.error:.0%}"
            lines.append(f"Expected IoU, from examples left out: {mean} ({by_class}), head {self.head}")
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        return [*self.doubts(), *(f"skipped {bad}" for bad in self.skipped)]

    def doubts(self) -> list[str]:
        """What a user should know before trusting the masks, a sentence each."""
        if self.estimate is None:
            reason = "there is one example" if self.examples == 1 else "no class is in two of the examples"
            return [f"nothing can be said about the quality, because {reason}; label another image to get an estimate"]
        found = []
        poor = [n for n, value in self.estimate.iou.items() if value is not None and value < _POOR]
        if poor:
            named = ", ".join(f"class {number} ({self.estimate.iou[number]:.0%})" for number in poor)
            found.append(
                f"an IoU below {_POOR:.0%} is expected for {named}: label more examples of it, use a larger "
                "short_side, or fine-tune the network"
            )
        alone = [str(number) for number, value in self.estimate.iou.items() if value is None]
        if alone:
            found.append(f"nothing can be said about class {', '.join(alone)}, which is in one example only")
        return found


@torch.no_grad()
def segment_images(encoder: Encoder, examples: Path, images: Path, out: Path, config: Segmenting) -> SegmentedFolder:
    """Segment one image or every image of a folder; writes all files or none.

    masks/<name>.png, overlays/<name>.jpg (at most 24 megapixels), confidence/<name>.png (the probability of the class,
    255 is certain), and segmentation.json with the chosen settings, the expected IoU and the mean confidence of every
    image.
    """
    pairs = find_pairs(examples)
    new = [images] if images.is_file() else list_frames(images)
    memory = remember(encoder.eval(), pairs, config)
    label, expected, head = fitted(memory, config)
    skipped, confidence = [], {}
    with filling(out) as folder, Bar(images.name, len(new)) as bar:
        for name in ("masks", "overlays", "confidence"):
            (folder / name).mkdir()
        for path, name in zip(new, file_names(new), strict=True):
            try:
                image = decode(path, str(path))
                found = segment(encoder, image, label, memory, config)
            except BadImage as error:
                skipped.append(error)
                continue
            except TooManyPatches as error:
                skipped.append(BadImage(str(path), str(error)))
                continue
            save_mask(found.mask, folder / "masks" / f"{name}.png")
            save_levels(found.confidence, folder / "confidence" / f"{name}.png")
            save_picture(_drawn(image, found), folder / "overlays" / f"{name}.jpg")
            confidence[name] = round(_mean(found.confidence) / 255, 4)
            bar.advance(1)
        if len(skipped) == len(new):
            raise UserError(f"none of the {len(new)} images in {images} can be read; the first error: {skipped[0]}")
        written = SegmentedFolder(
            out, len(confidence), len(pairs), memory.classes.tolist(), head, expected, confidence, skipped
        )
        write_text(folder / "segmentation.json", json.dumps(_summary(written, label), indent=2) + "\n")
    return written


def fitted(memory: LabelledPatches, config: Segmenting) -> tuple[Balanced, Estimate | None, HeadName]:
    """What labels patches, with the settings that are best for examples that are left out."""
    heads: tuple[HeadName, ...] = ("vote", "trained") if config.head == "auto" else (config.head,)
    balances = BALANCES if config.balance == "auto" else (config.balance,)
    found = estimate(memory, heads, balances, config.k, config.temperature)
    head, balance, sharpness = heads[0], balances[0] if len(balances) == 1 else _USUAL_BALANCE, 1.0
    if found is not None:
        head, balance, sharpness = found.head, found.balance, found.sharpness
    base = labeller(head, memory, config.k, config.temperature)
    return Balanced(base, frequencies(memory), balance, sharpness), found, head


@torch.no_grad()
def segment(
    encoder: Encoder, image: UInt8[Tensor, "3 h w"], label: Labeller, memory: LabelledPatches, size: FrameSize
) -> Segmented:
    """The class of every pixel of one image."""
    pixels = (image.shape[1], image.shape[2])
    tokens, grid = patch_features(encoder, image, input_size(pixels, encoder, size))
    soft = label(tokens).T.reshape(-1, *grid)
    mask, numbers = largest_upsampled(soft, pixels).cpu(), memory.classes.to(torch.uint8)
    for rows in torch.split(mask, _ROWS_AT_ONCE):
        rows.copy_(numbers[rows.long()])
    return Segmented(mask, largest_share(soft, pixels).cpu())


def _drawn(image: UInt8[Tensor, "3 h w"], found: Segmented) -> UInt8[Tensor, "3 _ _"]:
    """The overlay. Of an image that is larger than a picture need be, it shows every n-th row and column."""
    n = max(1, math.ceil(math.sqrt(found.mask.numel() / _MOST_DRAWN)))
    shown, mask, confidence = (part[..., ::n, ::n].contiguous() for part in (image, found.mask, found.confidence))
    return overlay(_darkened(shown, confidence), mask)


def _mean(levels: UInt8[Tensor, "h w"]) -> float:
    return sum(int(rows.sum()) for rows in torch.split(levels, _ROWS_AT_ONCE)) / levels.numel()


def _darkened(image: UInt8[Tensor, "3 h w"], confidence: UInt8[Tensor, "h w"]) -> UInt8[Tensor, "3 h w"]:
    """The image, darker where the class is uncertain."""
    dark = torch.empty_like(image)
    for rows in torch.split(torch.arange(image.shape[1]), _ROWS_AT_ONCE):
        light = _DARKEST + (1 - _DARKEST) * confidence[rows].float() / 255
        dark[:, rows] = (image[:, rows] * light).round().to(torch.uint8)
    return dark


def _summary(found: SegmentedFolder, label: Balanced) -> dict[str, Any]:
    expected = found.estimate
    return {
        "head": found.head,
        "balance": label.balance,
        "sharpness": label.sharpness,
        "examples": found.examples,
        "classes": found.classes,
        "expected_iou": None if expected is None else {str(n): value for n, value in expected.iou.items()},
        "expected_mean_iou": None if expected is None else expected.mean,
        "expected_mean_iou_error": None if expected is None else expected.error,
        "mean_iou_by_head": None if expected is None else expected.by_head,
        "examples_left_out": 0 if expected is None else expected.tested,
        "warnings": found.doubts(),
        "confidence": found.confidence,
    }
