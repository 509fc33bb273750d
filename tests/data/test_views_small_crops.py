"""Crops by matrix products, compared with torch's resize."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.data.views import Crop, Views
from asterism.data.views.crop import interleaved
from asterism.data.views.small_crops import LONGEST, can_resize, resize_crops
from asterism.types import ViewSpec


def pictures(count: int, height: int, width: int) -> list[Tensor]:
    """Noise, and hard edges between black and white, where bicubic interpolation leaves the range of bytes."""
    noise = torch.randint(0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(0))
    edges = 255 * (noise[::2] > 127)
    return list(interleaved(torch.cat([noise, edges]).to(torch.uint8)))


def reference(image: Tensor, crop: Crop, size: int) -> Tensor:
    window = image[None, :, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    resized = F.interpolate(interleaved(window), (size, size), mode="bicubic", antialias=True)[0]
    return resized.flip(-1) if crop.flip else resized


@pytest.mark.parametrize(
    ("height", "width", "size"), [(32, 32, 32), (32, 32, 16), (28, 28, 28), (48, 31, 33), (5, 48, 48), (1, 2, 3)]
)
def test_crops_are_equal_to_those_of_torch(height: int, width: int, size: int) -> None:
    """Every height and every width of a crop occurs."""
    draw = random.Random(0)
    for number in range(max(height, width)):
        images = pictures(4, height, width)
        crops = []
        for _ in images:
            rows, columns = draw.randint(1, height), draw.randint(1, width)
            if draw.random() < 0.5:
                rows = number % height + 1
            else:
                columns = number % width + 1
            top, left = draw.randint(0, height - rows), draw.randint(0, width - columns)
            crops.append(Crop(top, left, rows, columns, flip=draw.random() < 0.5))
        assert can_resize(images, size)
        found = resize_crops(images, crops, size)
        for one, image, crop in zip(found, images, crops, strict=True):
            assert torch.equal(one, reference(image, crop, size)), crop


def test_other_images_are_left_to_torch() -> None:
    small, other = torch.zeros(3, 32, 32, dtype=torch.uint8), torch.zeros(3, 32, 31, dtype=torch.uint8)
    large = torch.zeros(3, LONGEST + 1, 32, dtype=torch.uint8)
    assert can_resize([small, small], 32)
    assert not can_resize([small, other], 32)
    assert not can_resize([large, large], 32)
    assert not can_resize([small, small], LONGEST + 1)
    assert not can_resize([small, small], 2)  # sums of so many levels would be rounded


def test_views_do_not_depend_on_the_other_images() -> None:
    """Alone, next to images of its size, and next to one of another size."""
    views = Views([ViewSpec(size=32, scale=(0.2, 1.0)), ViewSpec(size=16, scale=(0.1, 0.4))])
    images = [*pictures(4, 32, 32), *pictures(1, 40, 60)]
    keys = list(range(len(images)))

    def made(which: list[int]) -> list[Tensor]:
        chosen = [images[number] for number in which]
        sizes = [(image.shape[1], image.shape[2]) for image in chosen]
        return [view[0] for view in views.apply(chosen, views.sample(sizes, [keys[number] for number in which]))]

    alone = made([2])
    for others in ([2, 0, 1], [2, 6, 0]):
        for one, other in zip(made(others), alone, strict=True):
            assert torch.equal(one, other)
