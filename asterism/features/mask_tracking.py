"""Tracking the objects of the first frame through a video with frozen patch features.

DINO's protocol on DAVIS: frames have a short side of 480 pixels and a long side that is a multiple of 64, for encoders
of 224 pixels (in proportion for others). Features are the patch tokens of the last block. The mask is propagated from
the first frame and the last seven (see `asterism.ops.propagation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.config import Config
from asterism.errors import UserError
from asterism.nn.encoder import Encoder
from asterism.ops.neighbours import nearest
from asterism.ops.propagation import class_shares, hard_labels, one_hot_masks, propagate, resize_labels
from asterism.ranges import Count, CountFromZero, Pixels, Temperature

_SHORT_SIDE, _MULTIPLE, _IMAGE_SIZE = 480, 64, 224  # pixels, of the published protocol
MOST_PATCHES = 16_384  # of one image; a frame of the published protocol has 1,620 patches of 16 pixels


class TooManyPatches(UserError):
    """An image that would take the network minutes and gigabytes, because attention grows with the square."""


class FrameSize(Config):
    """The size of images whose patches are compared; None is in proportion to the encoder's image size."""

    short_side: Pixels | None = None  # pixels; 480 for encoders of 224
    multiple: Pixels | None = None  # pixels; the long side is rounded down to a multiple; 64 for encoders of 224


class Tracking(FrameSize):
    """Constants of mask propagation; the defaults are those of DINO."""

    context: CountFromZero = 7  # preceding frames to propagate from, in addition to the first
    topk: Count = 5  # most similar patches in all these frames, whose masks are averaged
    radius: CountFromZero = 12  # patches; 12 is a window of 25 × 25
    temperature: Temperature = 0.1
    first_mask: Literal["nearest", "shares"] = "nearest"  # per cell: the nearest pixel, or the share of each object


def input_size(frame: tuple[int, int], encoder: Encoder, size: FrameSize) -> tuple[int, int]:
    """Height and width of the encoder's input for frames of this height and width."""
    patch = encoder.patch_size
    short = size.short_side or usual_short_side(encoder.image_size)
    short = max(patch, short // patch * patch)
    step = size.multiple or round(_MULTIPLE * encoder.image_size / _IMAGE_SIZE)
    step = max(patch, step // patch * patch)
    shorter = min(frame)
    height, width = (
        short if side == shorter else max(step, int(side * short / shorter / step) * step) for side in frame
    )
    patches = (height // patch) * (width // patch)
    if patches > MOST_PATCHES:
        raise TooManyPatches(
            f"an image of {frame[1]}×{frame[0]} pixels has {patches:,} patches at short_side={short}, more than "
            f"{MOST_PATCHES:,}; set a smaller short_side or cut the image up"
        )
    return height, width


def usual_short_side(image_size: int) -> int:
    """In proportion to the size of an encoder's images."""
    return round(_SHORT_SIDE * image_size / _IMAGE_SIZE)


def patch_features(
    encoder: Encoder, image: UInt8[Tensor, "3 h w"], size: tuple[int, int]
) -> tuple[Float[Tensor, "n d"], tuple[int, int]]:
    """The patch tokens of one image resized to `size` (bicubic, antialiased), and their grid."""
    patches, grid = _batch_features(encoder, [image], size)
    return patches[0], grid


@dataclass(frozen=True)
class FollowedFrame:
    """A frame after the first: its mask, with the object numbers of the first mask, on the CPU."""

    mask: Int64[Tensor, "h w"]
    # By object, without the background, in [0, 1]: how well its patches and those of the object in the first frame are
    # each other's most similar ones. 0 if no patch is assigned to it.
    confidence: dict[int, float]


def follow_objects(
    encoder: Encoder,
    frames: Iterable[UInt8[Tensor, "3 h w"]],
    first_mask: Int64[Tensor, "h w"],
    config: Tracking,
    *,
    batch_size: int = 8,
) -> Iterator[FollowedFrame]:
    """Every frame after the first, with the object numbers of the first mask.

    `batch_size` frames are read and encoded at a time, so a video may have any length.
    """
    objects = torch.unique(first_mask)
    places = torch.searchsorted(objects, first_mask)
    remaining = iter(frames)
    first = next(remaining)
    output = (first.shape[1], first.shape[2])
    size = input_size(output, encoder, config)
    features, grid = patch_features(encoder, first, size)
    start = _first_cells(places, len(objects), grid, config).to(features.device)
    latest: list[Float[Tensor, "n d"]] = []  # of the frame whose mask comes next

    def tokens() -> Iterator[Float[Tensor, "n d"]]:
        yield features
        for batch in _batches(_of_one_size(remaining, output), batch_size):
            for found in _batch_features(encoder, batch, size)[0]:
                latest[:] = [found]
                yield found

    settings = config.model_dump(include={"context", "topk", "radius", "temperature"})
    for mask in propagate(tokens(), start, **settings):
        agreement = mutual_agreement(latest[0], features, mask, start, config)
        sure = {int(number): float(agreement[i]) for i, number in enumerate(objects) if number > 0}
        yield FollowedFrame(objects[hard_labels(mask, size, output).cpu()], sure)


def mutual_agreement(
    tokens: Float[Tensor, "n d"],
    first: Float[Tensor, "n d"],
    mask: Float[Tensor, "c h w"],
    start: Float[Tensor, "c h w"],
    config: Tracking,
) -> Float[Tensor, " c"]:
    """How well the patches of each object in a frame and in the first frame find each other, in [0, 1].

    There: the share of the object in the most similar patches of the first frame, over the cells that are now its own.
    It falls when the object disappears. Back: the share of the cells that are now its own in the most similar patches
    of this frame, over the object in the first one. It falls when the mask drifts away from an object that can still be
    seen. The result is their geometric mean. Neither follows the last frames or stays near a position, so they cannot
    drift with the mask.
    """
    own = mask * (mask >= mask.amax(dim=0)) * (mask > 0)
    there = _votes(tokens, first, start, config)
    back = _votes(first, tokens, (own > 0).to(start.dtype), config)
    return (_mean_over(there, own) * _mean_over(back, start)).sqrt()


def _votes(
    tokens: Float[Tensor, "n d"], others: Float[Tensor, "m d"], shares: Float[Tensor, "c h w"], config: Tracking
) -> Float[Tensor, "c n"]:
    """For each patch, what the most similar patches of another frame belong to."""
    similarity, index = nearest(tokens.float(), others.float(), min(config.topk, len(others)))
    weights = torch.softmax(similarity / config.temperature, dim=1)
    return torch.einsum("qk,qkc->cq", weights, shares.flatten(1).T[index])


def _mean_over(values: Float[Tensor, "c n"], weights: Float[Tensor, "c h w"]) -> Float[Tensor, " c"]:
    """The weighted mean of each class; 0 where there is no weight."""
    flat = weights.flatten(1)
    return (values * flat).sum(dim=1) / flat.sum(dim=1).clamp_min(1e-12)


def _batch_features(
    encoder: Encoder, images: list[UInt8[Tensor, "3 h w"]], size: tuple[int, int]
) -> tuple[Float[Tensor, "b n d"], tuple[int, int]]:
    resized = [
        image if tuple(image.shape[1:]) == size else F.interpolate(image[None], size, mode="bicubic", antialias=True)[0]
        for image in images  # one at a time: originals may be large
    ]
    features = encoder.encode(torch.stack(resized))
    return features.patches, features.grid


def _batches(frames: Iterator[UInt8[Tensor, "3 h w"]], size: int) -> Iterator[list[UInt8[Tensor, "3 h w"]]]:
    while batch := list(islice(frames, size)):
        yield batch


def _of_one_size(frames: Iterator[UInt8[Tensor, "3 h w"]], size: tuple[int, int]) -> Iterator[UInt8[Tensor, "3 h w"]]:
    for number, frame in enumerate(frames, start=2):
        if tuple(frame.shape[1:]) != size:
            raise UserError(
                f"frame {number} has {frame.shape[2]}×{frame.shape[1]} pixels, but the first has "
                f"{size[1]}×{size[0]}; all frames of a video must have the same size"
            )
        yield frame


def _first_cells(
    places: Tensor, objects: int, grid: tuple[int, int], config: Tracking
) -> Float[Tensor, "c rows columns"]:
    if config.first_mask == "shares":
        return class_shares(places, objects, grid)
    return one_hot_masks(resize_labels(places, grid), objects)
