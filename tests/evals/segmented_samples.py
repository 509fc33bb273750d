"""Small segmented folders in published layouts."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from asterism.ops.random import fold, generator

HALVES = {0: (200, 40, 30), 1: (30, 40, 200), 2: (30, 200, 40)}  # colour of each class


def halves(number: int, size: tuple[int, int] = (16, 24)) -> tuple[Image.Image, np.ndarray]:
    """An image whose left and right halves have two classes, and its mask."""
    mask = np.zeros(size, dtype=np.uint8)
    mask[:, : size[1] // 2] = number % 3
    mask[:, size[1] // 2 :] = (number + 1) % 3
    noise = torch.randint(-20, 21, (*size, 3), generator=generator(fold(0, number))).numpy()
    colours = np.array([HALVES[label] for label in range(3)])
    return Image.fromarray((colours[mask] + noise).clip(0, 255).astype(np.uint8)), mask


def write_camvid(root: Path, counts: dict[str, int], size: tuple[int, int] = (16, 24)) -> Path:
    for split, count in counts.items():
        (root / split).mkdir(parents=True)
        (root / f"{split}annot").mkdir()
        for number in range(count):
            image, mask = halves(number, size)
            image.save(root / split / f"{number:03d}.png")
            Image.fromarray(mask).save(root / f"{split}annot" / f"{number:03d}.png")
    return root
