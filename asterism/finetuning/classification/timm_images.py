"""Training images through timm's augmentations, each a function of its random key; batches of images with labels."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.config import Config
from asterism.data import Sample
from asterism.finetuning.task import TaskBatch
from asterism.images.write import to_pillow
from asterism.ops import streams
from asterism.ops.normalise import Triple
from asterism.ops.random import fold_each
from asterism.ranges import AreaRange, Few, NonNegative, PositiveRange, Share

_ALMOST_FULL = 9.99  # of 10, timm's strongest


class RandAugmentConfig(Config):
    """timm's RandAugment with increasing severity."""

    magnitude: NonNegative = 9.0  # of 10
    deviation: NonNegative = 0.5  # of the magnitude, drawn for each operation
    layers: Few = 2  # operations per image


class AugmentationConfig(Config):
    """timm's training transform. Probabilities are in [0, 1]."""

    crop_area: AreaRange = (0.08, 1.0)  # share of the image
    crop_ratio: PositiveRange = (3 / 4, 4 / 3)  # width over height
    flip: Share = 0.5
    randaugment: RandAugmentConfig | None = RandAugmentConfig()
    color_jitter: NonNegative = 0.0  # brightness, contrast, saturation; only without RandAugment
    erasing: Share = 0.25  # a rectangle becomes noise


class MixingConfig(Config):
    """Mixup or cutmix of two images and their labels."""

    mixup: NonNegative = 0.8  # α of the Beta distribution; 0: never
    cutmix: NonNegative = 1.0  # α; 0: never
    probability: Share = 1.0
    switch: Share = 0.5  # share of cutmix, if both are used


@dataclass(frozen=True)
class TimmImages:
    """Makes batches of augmented, normalised images with their labels."""

    config: AugmentationConfig
    size: int
    mean: Triple
    std: Triple

    def __call__(self, samples: Iterable[Sample], keys: Sequence[int]) -> TaskBatch:
        images, labels = [], []
        for sample, key in zip(samples, keys, strict=True):
            with seeded(key):
                images.append(self._transform(to_pillow(sample.image)))
            labels.append(sample.label)
        return TaskBatch(torch.stack(images), (torch.tensor(labels),), torch.tensor(list(keys)))

    @cached_property
    def _transform(self) -> Any:
        from timm.data.transforms_factory import create_transform

        config, policy = self.config, self.config.randaugment
        name = None
        if policy is not None:
            name = f"rand-m{policy.magnitude:g}-n{policy.layers}-mstd{policy.deviation:g}-inc1"
        transform = create_transform(
            self.size,
            is_training=True,
            scale=config.crop_area,
            ratio=config.crop_ratio,
            hflip=config.flip,
            color_jitter=config.color_jitter,
            auto_augment=name,
            interpolation="bicubic",
            mean=self.mean,
            std=self.std,
            re_prob=config.erasing,
            re_mode="pixel",
        )
        _keep_a_bit(transform)
        return transform

    def __getstate__(self) -> dict[str, Any]:
        """Without the transform, which every worker makes itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_transform"}


def _keep_a_bit(transform: Any) -> None:
    """Limit posterising to one bit per colour: at its full strength, timm keeps none, which Pillow 13 refuses."""
    from timm.data.auto_augment import RandAugment

    for policy in transform.transforms:
        for operation in policy.ops if isinstance(policy, RandAugment) else ():
            if operation.name.startswith("Posterize"):
                operation.magnitude_max = _ALMOST_FULL


def mixed(
    images: Tensor, labels: Tensor, keys: Tensor, config: MixingConfig | None, smoothing: float, classes: int
) -> tuple[Tensor, Tensor]:
    """Images and soft targets, with neighbours mixed by timm's `Mixup`: the first with the second, and so on.

    Differs from timm, which mixes an image with its mirror position in the batch of a process and draws λ once for
    that batch: here the partner and λ depend on the global batch alone, not on the number of processes. A last image
    without a partner is not mixed.
    """
    mixing: Any = importlib.import_module("timm.data.mixup")  # without types
    targets = mixing.mixup_target(labels, classes, 1.0, smoothing)
    if config is None or config.mixup == config.cutmix == 0:
        return images, targets
    mix = mixing.Mixup(
        mixup_alpha=config.mixup,
        cutmix_alpha=config.cutmix,
        prob=config.probability,
        switch_prob=config.switch,
        label_smoothing=smoothing,
        num_classes=classes,
    )
    images = images.clone()
    own = fold_each(keys, streams.Classification.MIXING)[::2].tolist()
    for first, key in zip(range(0, len(images) - 1, 2), own, strict=False):
        pair = slice(first, first + 2)
        with seeded(key):
            images[pair], targets[pair] = mix(images[pair], labels[pair])
    return images, targets


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Inside, draws of the generators that timm uses (Python's, numpy's, torch's) are a function of the key."""
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & (1 << 63) - 1)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])
