"""Small backbones and random batches for tests of methods."""

from dataclasses import replace

import torch

from asterism.methods.base import Method
from asterism.nn.backbone import BackboneConfig
from asterism.ops.random import fold, fold_each
from asterism.types import Batch, View

TINY = BackboneConfig(name="vit_tiny_patch16_224", image_size=16, patch_size=4, dim=32, depth=2, heads=2)


def random_batch(method: Method, images: int, seed: int = 0) -> Batch:
    """Noise in views of the sizes the method specifies; every view is the whole image."""
    generator = torch.Generator().manual_seed(seed)
    views = [torch.randn(images, 3, spec.size, spec.size, generator=generator) for spec in method.views]
    index = torch.arange(images)
    return Batch.of(views, fold_each(index, seed, fold(seed, 1)), index)


def rows(batch: Batch, part: slice) -> Batch:
    """Some images of a batch."""
    views = tuple(
        View(
            view.pixels[part],
            replace(view.geometry, **{name: value[part] for name, value in vars(view.geometry).items()}),
        )
        for view in batch.views
    )
    return Batch(views, batch.index[part], batch.keys[part])
