import math

import torch

from asterism.ops.psnr import psnr


def test_psnr_of_each_image() -> None:
    g = torch.Generator().manual_seed(0)
    images, made = torch.rand(3, 3, 4, 5, generator=g), torch.rand(3, 3, 4, 5, generator=g)
    for ours, one, other in zip(psnr(made, images), made, images, strict=True):
        total = sum((float(a) - float(b)) ** 2 for a, b in zip(one.flatten(), other.flatten(), strict=True))
        assert math.isclose(float(ours), 10 * math.log10(one.numel() / total), rel_tol=1e-12)


def test_equal_images_have_infinite_psnr() -> None:
    images = torch.full((2, 3, 4, 4), 0.3)
    assert psnr(images, images).isinf().all()
    torch.testing.assert_close(psnr(images + 0.1, images), torch.full((2,), 20.0, dtype=torch.float64))
