import math

import pytest
import torch

from asterism.ops.image_quality import psnr, ssim


def test_psnr_of_each_image() -> None:
    g = torch.Generator().manual_seed(0)
    images, made = torch.rand(3, 3, 4, 5, generator=g), torch.rand(3, 3, 4, 5, generator=g)
    for ours, one, other in zip(psnr(made, images), made, images, strict=True):
        total = sum((float(a) - float(b)) ** 2 for a, b in zip(one.flatten(), other.flatten(), strict=True))
        assert math.isclose(float(ours), 10 * math.log10(one.numel() / total), rel_tol=1e-12)


def test_one_window_written_out() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(256, (1, 3, 11, 11), generator=g, dtype=torch.uint8) for _ in range(2))
    line = [math.exp(-((i - 5) ** 2) / 4.5) for i in range(11)]
    weight = torch.tensor([[p * q for q in line] for p in line], dtype=torch.float64) / sum(line) ** 2
    values = []
    for x, y in zip(a[0].double(), b[0].double(), strict=True):
        mx, my = (weight * x).sum(), (weight * y).sum()
        vx, vy = (weight * (x - mx) ** 2).sum(), (weight * (y - my) ** 2).sum()
        c = (weight * (x - mx) * (y - my)).sum()
        numerator = (2 * mx * my + 2.55**2) * (2 * c + 7.65**2)
        values.append(float(numerator / ((mx**2 + my**2 + 2.55**2) * (vx + vy + 7.65**2))))
    assert ssim(a, b).item() == pytest.approx(sum(values) / 3)
