import math

import pytest
import torch
from torchvision.transforms.v2 import functional as TF

from asterism.data.views.blur import blur
from asterism.data.views.color import to_uint8
from tests.data.photographs import differences, photograph

SIGMAS = [0.1, 0.25, 0.5, 1.0, 1.6, 2.0]


@pytest.mark.parametrize("sigma", SIGMAS)
def test_within_one_level_of_torchvision(sigma: float) -> None:
    for seed in range(2):
        picture = photograph(seed, 64, 64)
        ours = to_uint8(blur(picture[None].float(), [sigma]))[0]
        taps = 2 * math.ceil(3 * sigma) + 1
        assert differences(ours, TF.gaussian_blur(picture, [taps, taps], [sigma, sigma])).max() <= 1
        many = TF.gaussian_blur(picture, [41, 41], [sigma, sigma])
        assert (
            differences(ours, many).max() <= 1
        )  # the tails beyond three standard deviations make no visible difference


def test_constant_images_are_unchanged_and_views_smaller_than_the_kernel_work() -> None:
    for size in (1, 2, 4):
        levels = torch.full((3, size, size), 77.0)
        torch.testing.assert_close(blur(levels[None], [2.0])[0], levels)
