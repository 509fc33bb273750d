"""Small image files for tests."""

import io
import os
import time
from pathlib import Path

import numpy as np
from PIL import Image


def picture(number: int, size: tuple[int, int] = (16, 12)) -> Image.Image:
    """An image unlike any other; width and height in pixels."""
    levels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(levels)


def encoded(number: int, kind: str = "PNG", size: tuple[int, int] = (16, 12)) -> bytes:
    buffer = io.BytesIO()
    picture(number, size).save(buffer, kind)
    return buffer.getvalue()


def write(path: Path, number: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(number))
    return path


def write_classes(root: Path, classes: dict[str, int]) -> Path:
    """A folder with the given number of pictures per class."""
    for place, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write(root / name / f"{number}.png", 100 * place + number)
    return root


def age(root: Path, seconds: float = 100) -> None:
    """Set all time stamps to some time ago."""
    then = time.time() - seconds
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            os.utime(Path(folder) / name, (then, then))
        os.utime(folder, (then, then))
