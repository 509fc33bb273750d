"""A file has the same pixels in every command: encode, embed, search, evaluate, concepts."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import asterism
from asterism.images.pictures import batch_of
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder

SIZE = 224


def levels(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def write_formats(folder: Path) -> list[Path]:
    """Every kind of file that two decoders might read differently, most with odd sides; two classes."""
    for name in ("grey", "colour"):
        (folder / name).mkdir(parents=True)
    ramp = np.linspace(0, 1, 301 * 250, dtype=np.float32).reshape(301, 250)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(ramp).save(folder / "grey/float.tiff")
    Image.fromarray((ramp * 2e9).astype(np.int32)).save(folder / "grey/int32.tiff")
    Image.fromarray((ramp * 40000).astype(np.int32)).save(folder / "grey/int32-small.tiff")
    Image.fromarray((ramp * 65535).astype(np.uint16)).save(folder / "grey/sixteen.png")
    Image.fromarray(levels(230, 311)).convert("L").save(folder / "grey/plain.png")
    Image.fromarray(levels(301, 401)).save(folder / "colour/odd.jpg", quality=90)
    Image.fromarray(levels(301, 400)).convert("CMYK").save(folder / "colour/cmyk.jpg")
    Image.fromarray(levels(301, 400)).convert("CMYK").save(folder / "colour/cmyk.tif")
    Image.fromarray(levels(229, 253)).convert("P").save(folder / "colour/palette.png")
    Image.fromarray(levels(229, 253, 4)).save(folder / "colour/alpha.png")
    Image.fromarray(levels(233, 355)).save(folder / "colour/turned.jpg", exif=exif)
    Image.fromarray(levels(235, 234)).save(folder / "colour/lossless.webp", lossless=True)
    return sorted(folder.rglob("*.*"))


def tiny_encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(build_backbone(BackboneConfig(dim=32, depth=1, heads=1, image_size=SIZE, patch_size=32))).eval()


def test_every_verb_sees_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_formats(tmp_path / "photos")
    encoder, seen = tiny_encoder(), list[Tensor]()
    original = Encoder.normalise

    def watched(self: Encoder, images: Tensor) -> Tensor:
        seen.extend(images.clone())
        return original(self, images)

    monkeypatch.setattr(Encoder, "normalise", watched)
    expected = {path: batch_of(path, SIZE)[0] for path in files}

    def pixels_of(verb: str) -> list[Tensor]:
        seen.clear()
        if verb == "encode":
            encoder.encode(files)
        elif verb == "encode one":
            for path in files:
                encoder.encode(str(path))
        elif verb == "embed":
            asterism.embed(encoder, tmp_path / "photos", tmp_path / "index.npz")
        elif verb == "search":
            asterism.search(encoder, tmp_path / "index.npz", files, tmp_path / "sheet.html", count=1)
        else:
            asterism.evaluate(encoder, tmp_path / "photos", "knn", knn={"resize": 1.0, "k": 1})
        return list(seen)

    for verb in ("encode", "encode one", "embed", "search", "evaluate"):
        found = pixels_of(verb)
        assert len(found) == len(files), verb
        for path, image in expected.items():
            assert any(torch.equal(image, other) for other in found), f"{path.name} in {verb}"


def test_only_the_decoder_opens_images() -> None:
    """Pillow on its own would open formats that run programs, such as PostScript."""
    package = Path(asterism.__file__).parent
    calls = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("Image.open", "PIL.Image.open")
    ]
    assert [call.partition(":")[0] for call in calls] == ["images/decode.py"], calls
