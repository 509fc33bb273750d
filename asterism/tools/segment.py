"""Segments images from a few labelled examples, without training: `asterism segment`.

Every patch of a new image takes the labels of its nearest patches in the examples, weighted by
exp(cosine / temperature). The soft labels are upsampled bilinearly, and the class of a pixel is their argmax.

Examples are images and masks as `asterism.data.sources.own_masks` reads them; void pixels are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from asterism.data.sources.davis import list_frames
from asterism.data.sources.own_masks import find_pairs, own_classes
from asterism.errors import UserError
from asterism.features.mask_tracking import FrameSize, TooManyPatches, input_size, patch_features
from asterism.files import filling
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode
from asterism.images.masks import VOID, save_mask
from asterism.images.pictures import read_picture
from asterism.images.write import save_picture
from asterism.nn.encoder import Encoder
from asterism.ops.neighbours import nearest
from asterism.ops.propagation import class_shares, largest_upsampled
from asterism.ranges import Count, Positive
from asterism.tools.output_folder import file_names
from asterism.viz.bar import Bar
from asterism.viz.mask_overlay import overlay

_ROWS_AT_ONCE = 256


class Segmenting(FrameSize):
    """Settings of in-context segmentation."""

    k: Count = 30  # nearest patches of the examples that vote
    temperature: Positive = 0.07


@dataclass(frozen=True)
class SegmentedFolder:
    """The files that were written."""

    folder: Path
    images: int
    examples: int
    classes: list[int]
    skipped: list[BadImage]  # images that could not be read


@dataclass(frozen=True)
class LabelledPatches:
    """Patches of the examples, and the share of each class in them."""

    features: Float[Tensor, "n d"]
    labels: Float[Tensor, "n c"]
    classes: Int64[Tensor, " c"]  # the numbers in the masks, ascending


def segment_images(encoder: Encoder, examples: Path, images: Path, out: Path, config: Segmenting) -> SegmentedFolder:
    """Write masks/<name>.png and overlays/<name>.jpg for one image or every image of a folder; all of them or none."""
    pairs = find_pairs(examples)
    new = [images] if images.is_file() else list_frames(images)
    memory = remember(encoder.eval(), pairs, config)
    skipped = []
    with filling(out) as folder, Bar(images.name, len(new)) as bar:
        for name in ("masks", "overlays"):
            (folder / name).mkdir()
        for path, name in zip(new, file_names(new), strict=True):
            try:
                image = decode(path, str(path))
                mask = segment(encoder, image, memory, config)
            except BadImage as error:
                skipped.append(error)
                continue
            except TooManyPatches as error:
                skipped.append(BadImage(str(path), str(error)))
                continue
            save_mask(mask, folder / "masks" / f"{name}.png")
            save_picture(overlay(image, mask), folder / "overlays" / f"{name}.jpg")
            bar.advance(1)
        if len(skipped) == len(new):
            raise UserError(f"none of the {len(new)} images in {images} can be read; the first error: {skipped[0]}")
    return SegmentedFolder(out, len(new) - len(skipped), len(pairs), memory.classes.tolist(), skipped)


def remember(encoder: Encoder, pairs: list[tuple[Path, Path]], config: Segmenting) -> LabelledPatches:
    """All patches of the examples that are at least half labelled."""
    own = own_classes([mask for _, mask in pairs])
    if len(own.values) < 2:
        raise UserError(
            f"the masks of the examples contain {len(own.values)} class; label at least two, including the background"
        )
    numbers = torch.full((VOID + 1,), VOID)
    numbers[: len(own.numbers)] = torch.tensor(own.numbers)
    masks = ((path, file, numbers[torch.from_numpy(own(file))]) for path, file in pairs)
    examples = ((_matching(path, file, mask), mask) for path, file, mask in masks)
    return labelled_patches(encoder, examples, torch.tensor(own.numbers), config)


def labelled_patches(
    encoder: Encoder,
    examples: Iterable[tuple[UInt8[Tensor, "3 h w"], Int64[Tensor, "h w"]]],
    classes: Int64[Tensor, " c"],
    config: Segmenting,
) -> LabelledPatches:
    """Patches of images whose masks contain these classes (ascending) or `VOID`."""
    features, labels = [], []
    for image, mask in examples:
        tokens, grid = patch_features(encoder, image, input_size((image.shape[1], image.shape[2]), encoder, config))
        places = torch.where(mask == VOID, len(classes), torch.searchsorted(classes, mask))
        shares = class_shares(places, len(classes), grid).flatten(1).T
        known = shares.sum(1) >= 0.5
        features.append(tokens.float()[known.to(tokens.device)])
        labels.append((shares / shares.sum(1, keepdim=True).clamp_min(0.5))[known])
    bank = torch.cat(features)
    if not len(bank):
        raise UserError("the masks of the examples are void (255) almost everywhere; label some of their pixels")
    return LabelledPatches(bank, torch.cat(labels).to(bank.device), classes)


def _matching(path: Path, file: Path, mask: Int64[Tensor, "h w"]) -> UInt8[Tensor, "3 h w"]:
    """The image of a mask, which must have its size."""
    image = read_picture(path)
    if mask.shape != image.shape[1:]:
        raise UserError(
            f"the mask {file} has {mask.shape[1]}×{mask.shape[0]} pixels, but its image {path} has "
            f"{image.shape[2]}×{image.shape[1]}; give both the same size"
        )
    return image


def segment(
    encoder: Encoder, image: UInt8[Tensor, "3 h w"], memory: LabelledPatches, config: Segmenting
) -> UInt8[Tensor, "h w"]:
    """The class of every pixel, as numbered in the masks of the examples."""
    size = (image.shape[1], image.shape[2])
    tokens, grid = patch_features(encoder, image, input_size(size, encoder, config))
    similarity, index = nearest(tokens.float(), memory.features, min(config.k, len(memory.features)))
    weights = torch.softmax(similarity / config.temperature, dim=1)
    soft = torch.einsum("qk,qkc->cq", weights, memory.labels[index]).reshape(-1, *grid)
    labels, numbers = largest_upsampled(soft, size).cpu(), memory.classes.to(torch.uint8)
    for rows in torch.split(labels, _ROWS_AT_ONCE):
        rows.copy_(numbers[rows.long()])
    return labels
