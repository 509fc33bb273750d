from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.errors import UserError
from asterism.images.decode import from_pillow
from asterism.images.pictures import square_picture


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_a_picture_of_the_right_size_is_left_alone() -> None:
    pixels = noise(16, 16)
    expected = torch.from_numpy(pixels).permute(2, 0, 1)
    for picture in (pixels, Image.fromarray(pixels), expected, expected.float() / 255, pixels.astype(np.float64) / 255):
        assert torch.equal(square_picture(picture, 16), expected)


def test_the_shorter_side_is_resized_and_the_middle_cut_out() -> None:
    image = Image.fromarray(noise(20, 31))
    resized = image.resize((round(31 * 10 / 20), 10), Image.Resampling.BICUBIC)  # 15.5 rounds to 16
    expected = np.array(resized)[:, 3:13]
    assert np.array_equal(square_picture(image, 10).permute(1, 2, 0).numpy(), expected)
    assert square_picture(Image.fromarray(noise(7, 3)), 8).shape == (3, 8, 8)


def test_paths_are_opened_and_turned_as_the_camera_says(tmp_path: Path) -> None:
    image = Image.fromarray(noise(8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    expected = torch.from_numpy(np.rot90(np.array(image), -1).copy()).permute(2, 0, 1)
    assert torch.equal(square_picture(tmp_path / "turned.png", 8), expected)
    assert torch.equal(square_picture(str(tmp_path / "turned.png"), 8), expected)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "I;16"])
def test_colours_are_read_as_the_data_does(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
    elif mode == "CMYK":
        image = Image.fromarray(noise(8, 8, 4), mode="RGBA").convert("RGB").convert("CMYK")
    else:
        image = Image.fromarray(noise(8, 8, 4)).convert(mode)
    file = io.BytesIO()
    image.save(file, format="TIFF")
    with Image.open(file) as opened:
        assert torch.equal(square_picture(opened, 8), from_pillow(opened, "test"))


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(UserError, match=r"cannot read the image .*text\.png"):
        square_picture(tmp_path / "text.png", 8)
    with pytest.raises(UserError, match=r"cannot read the image .*absent\.png"):
        square_picture(tmp_path / "absent.png", 8)
    whole = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(whole, format="PNG")
    (tmp_path / "half.png").write_bytes(whole.getvalue()[:2000])
    with pytest.raises(UserError, match=r"cannot read the image .*half\.png"):
        square_picture(tmp_path / "half.png", 8)
    with pytest.raises(UserError, match=r"got the shape \[8, 8, 5\]"):
        square_picture(noise(8, 8, 5), 8)
    with pytest.raises(UserError, match="got int64"):
        square_picture(noise(8, 8).astype(np.int64), 8)
