import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.errors import UserError
from asterism.images.centre_crop import center_square
from asterism.images.decode import decode
from asterism.images.pictures import as_list, batch_of, read_picture


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_every_form_of_one_picture_gives_its_pixels(tmp_path: Path) -> None:
    pixels = noise(16, 19)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    expected = torch.from_numpy(pixels).permute(2, 0, 1)
    forms = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(pixels),
        pixels,
        np.asarray(Image.fromarray(pixels)),  # read-only
        pixels.transpose(2, 0, 1),
        pixels.astype(np.float64) / 255,
        pixels.astype(">f4") / 255,
        expected,
        expected.permute(1, 2, 0),
        expected.float() / 255,
    ]
    for form in forms:
        assert torch.equal(read_picture(form), expected)
        assert torch.equal(batch_of(form, 12), center_square(expected, 12, 12)[None]), "one picture is a batch of one"
    assert batch_of(forms, 12).shape == (len(forms), 3, 12, 12), "lists may be mixed"
    assert torch.equal(batch_of(iter(forms), 12), batch_of(forms, 12))
    assert torch.equal(read_picture(noise(9, 8, 1)), torch.from_numpy(noise(9, 8, 1)).expand(3, 9, 8)), "grey"


def test_a_batch_keeps_its_size_and_precision() -> None:
    batch = torch.rand(2, 3, 6, 10)
    assert torch.equal(batch_of(batch, 8), batch)
    assert torch.equal(batch_of(batch.permute(0, 2, 3, 1), 8), batch)
    assert torch.equal(batch_of(batch.numpy(), 8), batch)
    assert len(as_list(batch)) == 2


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK", "I;16", "F", "I"])
def test_an_opened_picture_equals_its_file(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
    elif mode == "F":
        image = Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8))
    elif mode == "I":
        image = Image.fromarray(np.arange(64, dtype=np.int32).reshape(8, 8) * 5000)
    elif mode == "CMYK":
        image = Image.fromarray(noise(8, 8)).convert("CMYK")
    else:
        image = Image.fromarray(noise(8, 8, 4)).convert(mode)
    file = io.BytesIO()
    image.save(file, format="TIFF")
    with Image.open(file) as opened:
        assert torch.equal(read_picture(opened), decode(file.getvalue(), ""))


def test_files_that_are_not_images_are_reported(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    whole = io.BytesIO()
    Image.fromarray(noise(64, 64)).save(whole, format="PNG")
    (tmp_path / "half.png").write_bytes(whole.getvalue()[:2000])
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    for name in ("text.png", "script.png", "absent.png", "half.png", "pipe.jpg", "endless.jpg"):
        with pytest.raises(UserError, match=f"cannot read the image .*{name}"):
            read_picture(tmp_path / name)
    with pytest.raises(UserError, match="a folder, not a regular file; name its images"):
        read_picture(tmp_path)
    with Image.open(tmp_path / "half.png") as opened, pytest.raises(UserError, match=r"half\.png"):
        read_picture(opened)


Case = tuple[Callable[[], Any], str]
REFUSED: dict[str, Case] = {
    "five channels": (lambda: noise(8, 8, 5), r"got the shape \[8, 8, 5\]"),
    "transparency": (lambda: noise(8, 8, 4), r"4 channels: convert to RGB"),
    "one channel": (lambda: torch.zeros(1, 9, 9, dtype=torch.uint8), r"\[1, 9, 9\] \(1 channels"),
    "levels as floats": (lambda: noise(8, 8).astype(np.float32), r"got values from .*divide levels by 255"),
    "normalised": (lambda: torch.randn(3, 9, 9), "undo any normalisation"),
    "not a number": (lambda: torch.full((3, 9, 9), torch.nan), "got values from nan"),
    "integers": (lambda: noise(8, 8).astype(np.int64), "got int64; convert 0 … 255 to uint8"),
    "sixteen bits": (lambda: noise(8, 8).astype(np.uint16), "got uint16"),
    "truth values": (lambda: noise(8, 8) > 9, "got bool"),
    "either way round": (lambda: torch.rand(3, 5, 3), "smaller than 8 pixels a side"),
    "a long strip": (lambda: torch.rand(3, 500, 3), "smaller than 8 pixels a side"),
    "one axis": (lambda: torch.rand(8), r"got the shape \[8\]"),
    "five axes": (lambda: torch.rand(1, 1, 3, 8, 8), r"got the shape \[1, 1, 3, 8, 8\]"),
    "a batch either way round": (lambda: torch.rand(2, 3, 5, 3), r"may be \[b, 3, h, w\] or"),
    "a grey batch": (lambda: torch.rand(2, 1, 8, 8), "has no axis of 3 channels"),
    "a batch of levels": (lambda: 255 * torch.rand(2, 3, 8, 8), "divide levels by 255"),
    "an empty batch": (lambda: torch.rand(0, 3, 8, 8), "there are no images"),
    "an empty list": (lambda: [], "there are no images: the list is empty"),
    "a mapping": (lambda: {"image": noise(8, 8)}, "dict .* is not an image or a list"),
    "nothing": (lambda: None, "NoneType None is not an image"),
    "a number": (lambda: 3, "int 3 is not an image"),
    "bytes": (lambda: b"abc", "bytes b'abc' is not an image"),
    "a list of numbers": (lambda: [3], "int 3 is not an image"),
    "a list of batches": (lambda: [torch.rand(2, 3, 8, 8)], r"got the shape \[2, 3, 8, 8\]"),
    "words": (lambda: np.array(["a.jpg"]), "is not an image; pixels are uint8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_input_is_rejected_with_its_value_and_a_fix(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        batch_of(make(), 8)
