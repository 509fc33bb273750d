import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.images import decode as module
from asterism.images.bad_image import BadImage
from asterism.images.decode import decode
from asterism.images.limits import MIN_SIDE

HEIGHT, WIDTH = 24, 40


def scene() -> np.ndarray:
    """Smooth, so that lossy formats stay close, and different in every corner, so that a rotation shows."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack((x * 255 // WIDTH, y * 255 // HEIGHT, (x + y) * 255 // (WIDTH + HEIGHT)), -1).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    result = decode(data, "key")
    assert result.dtype == torch.uint8
    assert result.shape[0] == 3
    return result.permute(1, 2, 0).numpy()


def distance(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


def png_16(values: np.ndarray) -> bytes:
    """A 16-bit PNG written by hand: Pillow writes only grey ones."""
    height, width = values.shape[:2]
    colour = {2: 0, 3: 2}[values.ndim]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP"])
def test_lossless_formats_are_exact(kind: str) -> None:
    image = Image.fromarray(scene())
    if kind == "GIF":
        image = image.quantize(64)
    options = {"lossless": True} if kind == "WEBP" else {}
    assert distance(pixels(encoded(image, kind, **options)), np.array(image.convert("RGB"))) == 0


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000", "AVIF"])
def test_lossy_formats_are_close(kind: str) -> None:
    if kind == "AVIF" and Image.registered_extensions().get(".avif") != "AVIF":
        pytest.skip("this Pillow has no AVIF")
    assert distance(pixels(encoded(Image.fromarray(scene()), kind, quality=95)), scene()) < 24


def test_a_jpeg_equals_pillow_without_the_fast_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(scene()), "JPEG", progressive=True)
    fast = pixels(data)
    monkeypatch.setattr(module, "_decode_jpeg", None)
    assert distance(fast, pixels(data)) <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(kind: str, orientation: int) -> None:
    upright = scene()
    # How each orientation was stored, from the EXIF standard: which side of the picture row 0 and column 0 are.
    stored = {
        1: upright,  # top, left
        2: upright[:, ::-1],  # top, right
        3: upright[::-1, ::-1],  # bottom, right
        4: upright[::-1],  # bottom, left
        5: upright.transpose(1, 0, 2),  # left, top
        6: upright[:, ::-1].transpose(1, 0, 2),  # right, top
        7: upright[::-1, ::-1].transpose(1, 0, 2),  # right, bottom
        8: upright[::-1].transpose(1, 0, 2),  # left, bottom
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, **options)
    assert distance(pixels(data), upright) <= (12 if kind == "JPEG" else 0)


def test_broken_exif_is_ignored() -> None:
    image = Image.fromarray(scene())
    for kind in ("JPEG", "PNG"):
        data = encoded(image, kind, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff nonsense")
        assert distance(pixels(data), scene()) < 24


def test_grey_has_three_equal_channels() -> None:
    grey = scene()[:, :, 0]
    for kind in ("PNG", "JPEG"):
        result = pixels(encoded(Image.fromarray(grey), kind))
        assert distance(result, np.repeat(grey[:, :, None], 3, 2)) <= (0 if kind == "PNG" else 8)
        assert (result == result[:, :, :1]).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_range(kind: str) -> None:
    deep = np.linspace(0, 65535, HEIGHT * WIDTH).round().astype(np.uint16).reshape(HEIGHT, WIDTH)
    expected = np.rint(deep * (255 / 65535)).astype(np.uint8)
    assert distance(pixels(encoded(Image.fromarray(deep), kind)), np.repeat(expected[:, :, None], 3, 2)) == 0


def test_sixteen_bit_rgb_keeps_its_range() -> None:
    deep = scene().astype(np.uint16) * 257
    assert distance(pixels(png_16(deep)), scene()) == 0
    assert distance(pixels(png_16(deep[:, :, 0])), np.repeat(scene()[:, :, :1], 3, 2)) == 0
    between = (scene().astype(np.int64) * 257 - 100).clip(0).astype(np.uint16)
    assert distance(pixels(png_16(between)), np.rint(between / 257).astype(np.uint8)) <= 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 257, 65535], [0, 1, 255]),  # as 16 bits
        ([-1000, 0, 1000], [0, 128, 255]),  # stretched
        ([0, 2**20, 2**21], [0, 128, 255]),
        ([70000, 70000, 70000], [0, 0, 0]),  # nothing to stretch
    ],
)
def test_integer_tiff(values: list[int], expected: list[int]) -> None:
    array = np.tile(np.repeat(np.array(values, np.int32), 8), (8, 1))
    image = Image.fromarray(array)
    assert image.mode == "I"
    assert pixels(encoded(image, "TIFF"))[0, ::8, 0].tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),  # shares
        ([0.0, 100.4, 255.0], [0, 100, 255]),  # levels
        ([-1.0, 0.0, 1.0], [0, 128, 255]),  # stretched
        ([0.0, 500.0, 1000.0], [0, 128, 255]),
        ([float("nan"), 0.25, float("inf")], [64, 64, 64]),
    ],
)
def test_float_tiff(values: list[float], expected: list[int]) -> None:
    image = Image.fromarray(np.tile(np.repeat(np.array(values, np.float32), 8), (8, 1)))
    assert image.mode == "F"
    assert pixels(encoded(image, "TIFF"))[0, ::8, 0].tolist() == expected


def test_transparent_palette_shows_white() -> None:
    image = Image.fromarray(np.tile(np.repeat(np.array([0, 1], np.uint8), 8), (8, 1)), "P")
    image.putpalette([10, 20, 30, 200, 100, 50])
    for kind in ("PNG", "GIF"):
        result = pixels(encoded(image, kind, transparency=1))
        assert result[0, 0].tolist() == [10, 20, 30]
        assert result[0, 15].tolist() == [255, 255, 255]


def test_alpha_is_composited_over_white() -> None:
    alpha = np.linspace(0, 255, WIDTH).round().astype(np.uint8)[None].repeat(HEIGHT, 0)
    image = Image.fromarray(np.dstack((scene(), alpha)))
    share = alpha[:, :, None] / 255
    expected = np.rint(scene() * share + 255 * (1 - share)).astype(np.uint8)
    for kind in ("PNG", "TIFF"):
        assert distance(pixels(encoded(image, kind)), expected) <= 1
    grey = Image.fromarray(scene()[:, :, 0])
    grey.putalpha(Image.fromarray(alpha))
    assert grey.mode == "LA"
    assert distance(pixels(encoded(grey, "PNG")), np.repeat(expected[:, :, :1], 3, 2)) <= 1


def inks(image: Image.Image) -> np.ndarray:
    """RGB of plain CMYK inks: the light absorbed by neither the ink nor the black."""
    cmyk = np.array(image).astype(float) / 255
    return np.rint(255 * (1 - cmyk[..., :3]) * (1 - cmyk[..., 3:])).astype(np.uint8)


def test_cmyk_tiff() -> None:
    levels = np.dstack((scene(), scene()[:, :, 0] // 2))
    image = Image.fromarray(levels, "CMYK")
    assert distance(pixels(encoded(image, "TIFF")), inks(image)) <= 1


def test_cmyk_jpeg_inverted_by_adobe_and_plain() -> None:
    image = Image.fromarray(np.dstack((scene(), scene()[:, :, 0] // 2)), "CMYK")
    inverted = encoded(image, "JPEG", quality=98)  # Pillow writes Adobe's marker and Adobe's inversion
    assert b"Adobe" in inverted
    assert distance(pixels(inverted), inks(image)) < 16
    plain = encoded(image.point(lambda level: 255 - level), "JPEG", quality=98)
    start = plain.index(b"\xff\xee")
    length = int.from_bytes(plain[start + 2 : start + 4])
    without_marker = plain[:start] + plain[start + 2 + length :]
    assert distance(pixels(without_marker), inks(image)) < 16


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_frame_of_several(kind: str) -> None:
    first, second = Image.new("RGB", (16, 16), (200, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 200))
    options = {"lossless": True} if kind == "WEBP" else {}
    result = pixels(encoded(first, kind, save_all=True, append_images=[second], **options))
    assert (result == np.array([200, 0, 0])).all()


def noise() -> Image.Image:
    """Hard to compress, so that truncating the file truncates the pixels."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM", "GIF", "JPEG2000"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_truncated_files_are_bad(kind: str, share: float) -> None:
    data = encoded(noise(), kind)
    with pytest.raises(BadImage) as caught:
        decode(data[: int(len(data) * share)], "some/key")
    assert caught.value.key == "some/key"
    assert len(caught.value.reason) > 8
    assert "0x" not in caught.value.reason


@pytest.mark.parametrize("fast", [True, False])
def test_files_padded_with_zeros_are_bad(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted download into a preallocated file leaves such files."""
    if not fast:
        monkeypatch.setattr(module, "_decode_jpeg", None)
    data = encoded(noise(), "JPEG")
    with pytest.raises(BadImage, match="truncated"):
        decode(data[: len(data) // 2] + bytes(4 * len(data)), "key")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"not an image at all", "known format"),
        (b"\xff\xd8\xff\xe0", "."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "known format"),
        (b"\0\0\0\x18ftypheic" + bytes(64), "pillow-heif"),
        (bytes(1000), "known format"),
    ],
)
def test_files_that_are_not_images(data: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=reason):
        decode(data, "key")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_smallest_side(kind: str) -> None:
    assert pixels(encoded(Image.new("RGB", (MIN_SIDE, 50)), kind)).shape == (50, MIN_SIDE, 3)
    with pytest.raises(BadImage, match=f"50×{MIN_SIDE - 1}"):
        decode(encoded(Image.new("RGB", (50, MIN_SIDE - 1)), kind), "key")


def test_real_images_equal_pillow(real_data: Path) -> None:
    for path in sorted((real_data / "coco128" / "images").iterdir())[:12]:
        assert distance(pixels(path.read_bytes()), np.array(Image.open(path).convert("RGB"))) <= 1
