import math

import pytest
import torch
from torch import Tensor

from asterism.ops.random import generator
from asterism.ops.video_metrics import boundaries, boundary_similarity, dilated, region_similarity


def square(top: int, left: int, side: int, size: tuple[int, int] = (30, 40)) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[top : top + side, left : left + side] = True
    return mask


def test_regions() -> None:
    pairs = [(square(0, 0, 4), square(0, 2, 4)), (square(0, 0, 0), square(0, 0, 0)), (square(0, 0, 0), square(1, 1, 3))]
    j = region_similarity(*(torch.stack(masks) for masks in zip(*pairs, strict=True)))
    assert j.tolist() == pytest.approx([8 / 24, 1.0, 0.0])


def test_boundaries_are_left_of_and_above_every_change() -> None:
    found = boundaries(square(2, 2, 2, (5, 5))[None])[0]
    assert found.int().tolist() == [[0, 0, 0, 0, 0], [0, 1, 1, 1, 0], [0, 1, 0, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    assert not boundaries(torch.ones(1, 4, 4, dtype=torch.bool)).any()


@pytest.mark.parametrize("radius", [0, 1, 3])
def test_dilation_reaches_every_pixel_within_the_radius(radius: int) -> None:
    mask = torch.rand(1, 9, 11, generator=generator(1)) > 0.95
    points = mask[0].nonzero().tolist()
    expected = [[any(math.hypot(y - v, x - u) <= radius for v, u in points) for x in range(11)] for y in range(9)]
    assert dilated(mask, radius)[0].tolist() == expected


def test_boundaries_agree_within_the_tolerance() -> None:
    true, near, far = square(5, 5, 12)[None], square(5, 6, 12)[None], square(5, 17, 12)[None]
    assert boundary_similarity(near, true).item() == 1.0  # ⌈.008 · 50⌉ = 1 pixel
    assert boundary_similarity(far, true).item() < 0.4
    assert boundary_similarity(square(0, 0, 0)[None], true).item() == 0.0
