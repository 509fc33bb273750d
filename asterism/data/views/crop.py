"""Cropping an image and resizing the crop to the size of its view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Shaped, UInt8
from torch import Tensor

from asterism.data.views.sample import Crop


def cut(
    images: Sequence[UInt8[Tensor, "3 _ _"]],
    crops: Sequence[Sequence[Crop]],
    out: UInt8[Tensor, "v n 3 size size"],
) -> None:
    """Write the crops of all views of each image into `out`: antialiased bicubic resize, mirrored if `flip` is set.

    Equal to torchvision's `resized_crop` of a uint8 tensor. Compared with PIL, 99 % of the levels are within 1. Where
    bicubic interpolation overshoots a hard edge, both clip between their two passes, but PIL's first pass is vertical
    and torch's horizontal.
    """
    for image, views, own in zip(images, out.unbind(1), zip(*crops, strict=True), strict=True):
        whole = interleaved(image[None])
        for crop, view in zip(own, views, strict=True):
            window = whole[:, :, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
            resized = F.interpolate(interleaved(window), view.shape[1:], mode="bicubic", antialias=True)[0]
            view.copy_(resized.flip(-1) if crop.flip else resized)


def interleaved(images: UInt8[Tensor, "b 3 h w"]) -> UInt8[Tensor, "b 3 h w"]:
    """The same images with interleaved channels (channels last), the layout torch resizes fastest."""
    return images.contiguous(memory_format=torch.channels_last)


def cut_labels(labels: Shaped[Tensor, "h w"], crop: Crop, size: int) -> Shaped[Tensor, "{size} {size}"]:
    """The crop, resized by nearest neighbour: each pixel of the view takes the label under its centre."""
    rows = crop.top + _nearest(crop.height, size)
    columns = crop.left + _nearest(crop.width, size)
    return labels[rows[:, None], columns.flip(0) if crop.flip else columns]


def _nearest(length: int, size: int) -> Tensor:
    """The source pixel under the centre of each of `size` pixels laid over `length`: floor((i + 1/2)·length/size)."""
    return torch.arange(1, 2 * size, 2) * length // (2 * size)
