import io
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode
from asterism.images.limits import BYTES_VARIABLE, MAX_PIXELS, PIXELS_VARIABLE, check_size, max_pixels
from tests.campaigns.faults import png


def encoded(width: int, height: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 80, 200)).save(buffer, kind)
    return buffer.getvalue()


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_decoding(self: ImageFile.ImageFile) -> None:
        raise AssertionError("the pixels must not be decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", no_decoding)
    with pytest.raises(BadImage, match="more than 178,956,970 pixels; ASTERISM_MAX_IMAGE_PIXELS sets the limit"):
        decode(png(60_000, 60_000), "key")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_shapes(kind: str) -> None:
    assert decode(encoded(8, 800, kind), "key").shape == (3, 800, 8)
    for size in [(8, 801), (801, 8)]:
        with pytest.raises(BadImage, match="more than 100 times as long as wide"):
            decode(encoded(*size, kind), "key")
    with pytest.raises(BadImage, match="more than 65,500 pixels a side"):
        check_size(70_000, 1000, "key")


def test_limits_are_set_by_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PIXELS_VARIABLE, "1000")
    assert decode(encoded(20, 50), "key").shape == (3, 50, 20)
    for kind in ("PNG", "JPEG"):
        with pytest.raises(BadImage, match="20×51, more than 1,000 pixels"):
            decode(encoded(20, 51, kind), "key")
    monkeypatch.setenv(BYTES_VARIABLE, "40")
    (tmp_path / "a.png").write_bytes(encoded(20, 50))
    with pytest.raises(BadImage, match="more than the limit of 40"):
        decode(tmp_path / "a.png", "key")
    for text in ("many", "-5", "0", "1e9", "9" * 99):
        monkeypatch.setenv(PIXELS_VARIABLE, text)
        with pytest.raises(UserError, match=f"{PIXELS_VARIABLE}="):
            max_pixels()
    monkeypatch.delenv(PIXELS_VARIABLE)
    assert max_pixels() == MAX_PIXELS
