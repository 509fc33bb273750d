"""Test pictures with the properties of photographs: smooth areas, hard edges, texture, greys and extreme levels."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def photograph(seed: int, height: int, width: int) -> Tensor:
    """uint8 [3, height, width], with the memory layout of a decoder."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    levels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    levels = levels + random.normal(0, 8, (height, width, 3))
    for _ in range(4):
        top, left = random.integers(0, max(1, height - 2)), random.integers(0, max(1, width - 2))
        levels[top : top + height // 4, left : left + width // 4] = random.integers(-60, 316, 3)
    levels[: height // 8] = levels[: height // 8].mean(-1, keepdims=True)
    return from_pil(Image.fromarray(levels.clip(0, 255).astype(np.uint8)))


def from_pil(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def differences(ours: Tensor, theirs: Tensor) -> Tensor:
    """Absolute differences of two uint8 images, in levels."""
    assert ours.dtype == theirs.dtype == torch.uint8
    assert ours.shape == theirs.shape
    return (ours.int() - theirs.int()).abs().float()
