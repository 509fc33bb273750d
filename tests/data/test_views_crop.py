import random

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as TF

from asterism.data.views import Crop
from asterism.data.views.crop import cut, cut_labels
from tests.data.photographs import differences, from_pil, photograph, to_pil

BICUBIC = {"interpolation": InterpolationMode.BICUBIC, "antialias": True}


def random_crop(draw: random.Random, height: int, width: int) -> Crop:
    crop_height, crop_width = draw.randint(height // 5, height), draw.randint(width // 5, width)
    top, left = draw.randint(0, height - crop_height), draw.randint(0, width - crop_width)
    return Crop(top, left, crop_height, crop_width, flip=draw.random() < 0.5)


def cut_one(picture: Tensor, crop: Crop, size: int) -> Tensor:
    view = torch.empty(1, 3, size, size, dtype=torch.uint8)
    cut([picture], [[crop]], out=view[None])
    return view[0]


@pytest.mark.parametrize("size", [16, 48, 96])
def test_equals_torchvision_on_tensors_and_nearly_on_pil(size: int) -> None:
    draw = random.Random(size)
    for seed in range(4):
        picture = photograph(seed, 120, 160)
        for _ in range(4):
            crop = random_crop(draw, 120, 160)
            box = (crop.top, crop.left, crop.height, crop.width, [size, size])
            ours = cut_one(picture, crop, size)
            ours = ours.flip(-1) if crop.flip else ours
            assert torch.equal(ours, TF.resized_crop(picture, *box, **BICUBIC))
            pil = differences(ours, from_pil(TF.resized_crop(to_pil(picture), *box, **BICUBIC)))
            # Both clip what overshoots hard edges between two passes: PIL's first goes down, torch's across.
            assert pil.mean() <= 0.5
            assert (pil > 1).float().mean() <= 0.01


def test_memory_layout_of_the_image_does_not_matter() -> None:
    picture = photograph(0, 50, 70)
    crop = Crop(3, 5, 40, 31, flip=True)
    assert torch.equal(cut_one(picture, crop, 24), cut_one(picture.contiguous(), crop, 24))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 8), (4, 600), (600, 4)])
def test_tiny_and_long_images_are_enlarged(height: int, width: int) -> None:
    picture = torch.full((3, height, width), 90, dtype=torch.uint8)
    assert torch.equal(cut_one(picture, Crop(0, 0, height, width, flip=True), 32), torch.full((3, 32, 32), 90).byte())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_labels_are_those_under_the_centres(dtype: torch.dtype) -> None:
    draw = random.Random(0)
    labels = torch.arange(23 * 31).reshape(23, 31).to(dtype)
    for size in (1, 7, 16, 40):
        crop = random_crop(draw, 23, 31)
        ours = cut_labels(labels, crop, size)
        assert ours.dtype == dtype
        for row in range(size):
            for column in range(size):
                seen = size - 1 - column if crop.flip else column
                y = crop.top + int((row + 0.5) * crop.height / size)
                x = crop.left + int((seen + 0.5) * crop.width / size)
                assert ours[row, column] == labels[y, x]
