"""Crops by compiled code, compared with torch's resize."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asterism.data.views import Crop, Views
from asterism.data.views import crop as cropping
from asterism.data.views.compiled import compiled_functions
from asterism.data.views.crop import LONGEST, cut, interleaved
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


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many crops each call of the compiled function makes."""
    pytest.importorskip("numba")
    compiled, calls = compiled_functions(), list[int]()
    assert compiled is not None

    def resize_crops(images: Any, crops: Sequence[Crop], out: Any) -> None:
        calls.append(len(crops))
        compiled.resize_crops(images, crops, out)

    monkeypatch.setattr(cropping, "compiled_functions", lambda: compiled._replace(resize_crops=resize_crops))
    return calls


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(32, 32, 32), (32, 32, 16), (28, 28, 28), (48, 31, 33), (5, 48, 48), (1, 2, 3), (96, 64, 96), (40, 96, 1)],
)
def test_crops_are_equal_to_those_of_torch(height: int, width: int, size: int, counted: list[int]) -> None:
    """Every height and every width of a crop occurs."""
    draw = random.Random(0)
    images = pictures(4, height, width)

    def drawn(number: int) -> Crop:
        rows, columns = draw.randint(1, height), draw.randint(1, width)
        if draw.random() < 0.5:
            rows = number % height + 1
        else:
            columns = number % width + 1
        top, left = draw.randint(0, height - rows), draw.randint(0, width - columns)
        return Crop(top, left, rows, columns, flip=draw.random() < 0.5)

    for number in range(max(height, width)):
        crops = [[drawn(number) for _ in images] for _ in range(2)]
        found = torch.empty(2, len(images), 3, size, size, dtype=torch.uint8)
        cut(images, crops, found)
        assert counted[-2:] == [len(images)] * 2
        for own, view in zip(crops, found, strict=True):
            for one, image, crop in zip(view, images, own, strict=True):
                assert torch.equal(one, reference(image, crop, size)), crop


def test_other_images_are_left_to_torch(counted: list[int]) -> None:
    def cut_whole(*images: Tensor, size: int = 32) -> None:
        whole = [Crop(0, 0, image.shape[1], image.shape[2], flip=False) for image in images]
        cut(images, [whole], torch.empty(1, len(images), 3, size, size, dtype=torch.uint8))

    small, other = torch.zeros(3, 32, 32, dtype=torch.uint8), torch.zeros(3, 32, 31, dtype=torch.uint8)
    large = torch.zeros(3, LONGEST + 1, 32, dtype=torch.uint8)
    cut_whole(small, other)
    cut_whole(large, large)
    cut_whole(small, small, size=LONGEST + 1)
    assert counted == []
    cut_whole(small, small)
    assert counted == [2]


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
