"""Drawn shapes with masks, as a folder and as samples: a red rectangle and a blue disc on grey."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from asterism.data import Sample

COLOURS = np.array([(120, 120, 120), (220, 30, 20), (20, 40, 220)], dtype=np.uint8)  # of background, rectangle, disc


def drawn(number: int, height: int = 24, width: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image and the class of each of its pixels."""
    draw = np.random.default_rng(number)
    rows, columns = np.mgrid[:height, :width]
    mask = np.zeros((height, width), dtype=np.uint8)
    top, left = draw.integers(0, height // 3), draw.integers(0, width // 3)
    mask[top : top + height // 2, left : left + width // 3] = 1
    centre = draw.uniform(height * 0.4, height * 0.8), draw.uniform(width * 0.55, width * 0.8)
    mask[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < (height / 4) ** 2] = 2
    return COLOURS[mask], mask


def sample(number: int, height: int = 24, width: int = 32) -> Sample:
    image, mask = drawn(number, height, width)
    return Sample(torch.from_numpy(image).permute(2, 0, 1), str(number), semantic=torch.from_numpy(mask))


def drawn_folder(folder: Path, images: int = 12) -> Path:
    """images/ and masks/ of several sizes, with names of the classes."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(images):
        image, mask = drawn(number, 24 + number % 3, 32)
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
    (folder / "classes.txt").write_text("background\nrectangle\ndisc\n")
    return folder
