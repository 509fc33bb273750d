from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.errors import UserError
from asterism.images.masks import read_mask, save_mask
from asterism.images.palette import palette


def test_palette_images_are_read_as_indices(tmp_path: Path) -> None:
    mask = torch.tensor([[0, 1, 2], [7, 1, 200]])
    save_mask(mask, tmp_path / "m.png")
    with Image.open(tmp_path / "m.png") as image:
        assert image.mode == "P"
        assert image.convert("RGB").getpixel((1, 0)) == palette(2)[1]
    assert read_mask(tmp_path / "m.png").equal(mask)


def test_colours_are_objects_and_black_is_none(tmp_path: Path) -> None:
    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    pixels[0, 1], pixels[1, 0] = (255, 0, 0), (0, 9, 0)
    Image.fromarray(pixels).save(tmp_path / "m.png")
    assert read_mask(tmp_path / "m.png").tolist() == [[0, 2], [1, 0]]


def test_smoothed_and_broken_masks_are_rejected(tmp_path: Path) -> None:
    Image.fromarray(np.arange(100, dtype=np.uint8).reshape(10, 10)).save(tmp_path / "m.png")
    with pytest.raises(UserError, match=r"100 different values.*without anti-aliasing"):
        read_mask(tmp_path / "m.png")
    (tmp_path / "n.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"cannot read the mask .*n\.png"):
        read_mask(tmp_path / "n.png")
