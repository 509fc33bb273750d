"""Patches of labelled examples: their features, the share of each class in them, and the example they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from asterism.data.sources.own_masks import own_classes
from asterism.errors import UserError
from asterism.features.mask_tracking import FrameSize, input_size, patch_features
from asterism.images.masks import VOID
from asterism.images.pictures import read_picture
from asterism.nn.encoder import Encoder
from asterism.ops.propagation import class_shares, resize_labels

_SIDE = 512  # pixels of the longer side of the masks that are kept to measure with


@dataclass(frozen=True)
class Example:
    """One labelled image."""

    features: Float[Tensor, "n d"]  # of all patches
    shares: Float[Tensor, "n c"]  # of each class in each patch; rows sum to 1, or to 0 where less than half is labelled
    grid: tuple[int, int]
    places: UInt8[Tensor, "h w"]  # positions in the classes, or `VOID`, at a reduced size

    @cached_property
    def known(self) -> Bool[Tensor, " n"]:
        """The patches that are at least half labelled."""
        return self.shares.sum(dim=1) > 0

    @cached_property
    def present(self) -> Bool[Tensor, " c"]:
        """The classes that occur in the patches."""
        return self.shares.sum(dim=0) > 0


@dataclass(frozen=True)
class LabelledPatches:
    """All examples. `classes`: the numbers in the masks, ascending."""

    examples: tuple[Example, ...]
    classes: Int64[Tensor, " c"]

    @cached_property
    def features(self) -> Float[Tensor, "n d"]:
        """Of the patches that are at least half labelled."""
        return torch.cat([example.features[example.known] for example in self.examples])

    @cached_property
    def shares(self) -> Float[Tensor, "n c"]:
        return torch.cat([example.shares[example.known] for example in self.examples])

    def part(self, numbers: Sequence[int]) -> LabelledPatches:
        return LabelledPatches(tuple(self.examples[number] for number in numbers), self.classes)


def remember(encoder: Encoder, pairs: list[tuple[Path, Path]], size: FrameSize) -> LabelledPatches:
    """The examples of image files and their masks."""
    own = own_classes([mask for _, mask in pairs])
    if len(own.values) < 2:
        raise UserError(
            f"the masks of the examples contain {len(own.values)} class; label at least two, including the background"
        )
    numbers = torch.full((VOID + 1,), VOID)
    numbers[: len(own.numbers)] = torch.tensor(own.numbers)
    masks = ((path, file, numbers[torch.from_numpy(own(file))]) for path, file in pairs)
    examples = ((_matching(path, file, mask), mask) for path, file, mask in masks)
    return labelled_patches(encoder, examples, torch.tensor(own.numbers), size)


def labelled_patches(
    encoder: Encoder,
    examples: Iterable[tuple[UInt8[Tensor, "3 _ _"], Int64[Tensor, "_ _"]]],
    classes: Int64[Tensor, " c"],
    size: FrameSize,
) -> LabelledPatches:
    """Patches of images whose masks contain these classes (ascending) or `VOID`."""
    found = LabelledPatches(tuple(_example(encoder, image, mask, classes, size) for image, mask in examples), classes)
    if not len(found.features):
        raise UserError("the masks of the examples are void (255) almost everywhere; label some of their pixels")
    return found


def _example(encoder: Encoder, image: Tensor, mask: Tensor, classes: Tensor, size: FrameSize) -> Example:
    tokens, grid = patch_features(encoder, image, input_size((image.shape[1], image.shape[2]), encoder, size))
    places = torch.where(mask == VOID, len(classes), torch.searchsorted(classes, mask))
    shares = class_shares(places, len(classes), grid).flatten(1).T
    labelled = shares.sum(dim=1, keepdim=True)
    shares = torch.where(labelled >= 0.5, shares / labelled.clamp_min(0.5), 0)
    scale = min(1.0, _SIDE / max(mask.shape))
    small = resize_labels(places, (max(1, round(mask.shape[0] * scale)), max(1, round(mask.shape[1] * scale))))
    small = torch.where(small == len(classes), VOID, small).to(torch.uint8)
    return Example(tokens.float(), shares.to(tokens.device), grid, small)


def _matching(path: Path, file: Path, mask: Int64[Tensor, "h w"]) -> UInt8[Tensor, "3 h w"]:
    """The image of a mask, which must have its size."""
    image = read_picture(path)
    if mask.shape != image.shape[1:]:
        raise UserError(
            f"the mask {file} has {mask.shape[1]}×{mask.shape[0]} pixels, but its image {path} has "
            f"{image.shape[2]}×{image.shape[1]}; give both the same size"
        )
    return image
