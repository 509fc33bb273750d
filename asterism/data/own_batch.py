"""Batches for custom training loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from asterism.data.loader import RawBatch, to_batch
from asterism.data.views import Views
from asterism.errors import UserError
from asterism.images.pictures import Pictures, as_list, read_picture
from asterism.ops import streams
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD
from asterism.ops.random import fold
from asterism.types import Batch, Progress, ViewSpec


def make_batch(
    images: Pictures,
    views: Sequence[ViewSpec],
    progress: Progress,
    *,
    index: Int[Tensor, " b"] | Sequence[int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    device: str | torch.device = "cpu",
) -> Batch:
    """The views that a method requests (`method.views`), cut from images of any size, in the form its `loss` expects.

    images: anything that `Encoder.encode` accepts. index: the number of each image in its data set; crops, masks and
    dropped paths are drawn from (seed, epoch, index). Without it they are drawn from the step and the position in the
    batch. mean, std: of RGB in [0, 1], as the encoder expects them.
    """
    cut, pictures = Views(views), [read_picture(image) for image in as_list(images)]
    if cut.with_labels:
        raise UserError("these views need pixel labels (`segments`), which plain images do not have")
    numbers = range(len(pictures)) if index is None else [int(number) for number in index]
    if len(numbers) != len(pictures):
        raise UserError(f"there are {len(pictures)} images, but index has {len(numbers)} numbers; give one per image")
    by_step = (progress.seed, progress.step, streams.OwnBatch.POSITION)
    cause = by_step if index is None else (progress.seed, progress.epoch)
    keys = [fold(*cause, number) for number in numbers]
    parameters = cut.sample([(image.shape[1], image.shape[2]) for image in pictures], keys)
    raw = RawBatch(
        views=tuple(cut.apply(pictures, parameters)),
        segments={},
        geometry=cut.geometry(parameters),
        index=torch.tensor(list(numbers)),
        keys=torch.tensor(keys),
        bad=[],
        seen=0,
    )
    return to_batch(raw, torch.device(device), mean, std)
