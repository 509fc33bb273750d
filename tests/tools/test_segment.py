from pathlib import Path

import pytest
import torch

from asterism import api
from asterism.errors import UserError
from asterism.images.masks import read_mask, save_mask
from asterism.images.pictures import read_picture
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import MeanColours, small_encoder

SETTINGS = {"short_side": 24, "multiple": 2, "k": 3}


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    folder = tmp_path / "labelled"
    write_frames(folder / "images", 1)
    (folder / "masks").mkdir()
    mask = frame_and_mask(0)[1]
    save_mask(torch.where(mask == 2, 7, mask), folder / "masks/00000.png")
    return folder


def test_new_images_get_the_labels_of_the_examples(examples: Path, tmp_path: Path) -> None:
    new = write_frames(tmp_path / "new", 4)
    (new / "00001.jpg").write_bytes(b"no image")
    found = api.segment(MeanColours(2), examples, new, tmp_path / "out", **SETTINGS)
    assert (found.images, found.examples, found.classes) == (3, 1, [0, 1, 7])
    assert [bad.reason for bad in found.skipped] == ["the file is not an image of a known format"]
    true = frame_and_mask(3)[1]
    ours = read_mask(tmp_path / "out/masks/00003.png")
    assert (ours == torch.where(true == 2, 7, true)).float().mean() > 0.9
    assert (tmp_path / "out/overlays/00003.jpg").is_file()


def test_overlays_of_large_images_are_smaller(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = write_frames(tmp_path / "new", 1) / "00000.jpg"
    size = read_picture(image).shape
    monkeypatch.setattr("asterism.tools.segment._MOST_DRAWN", size[1] * size[2] // 3)
    api.segment(MeanColours(2), examples, image, tmp_path / "out", **SETTINGS)
    assert read_picture(tmp_path / "out/overlays/00000.jpg").shape == (3, -(-size[1] // 2), -(-size[2] // 2))
    assert read_mask(tmp_path / "out/masks/00000.png").shape == size[1:]


def test_masks_next_to_images_and_white_masks(tmp_path: Path) -> None:
    folder = write_frames(tmp_path / "labelled", 1)
    save_mask((frame_and_mask(0)[1] > 0).long() * 255, folder / "00000.png")
    image = write_frames(tmp_path / "new", 2) / "00001.jpg"
    assert api.segment(MeanColours(2), folder, image, tmp_path / "out", **SETTINGS).classes == [0, 1]


def test_mistakes_are_named(examples: Path, tmp_path: Path) -> None:
    new, out = write_frames(tmp_path / "new", 1), tmp_path / "out"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no image with a mask: give images/NAME.jpg"):
        api.segment(small_encoder(), tmp_path / "empty", new, out)
    with pytest.raises(UserError, match="no such folder of examples"):
        api.segment(small_encoder(), tmp_path / "none", new, out)
    with pytest.raises(UserError, match="no images in"):
        api.segment(small_encoder(), examples, tmp_path / "empty", out)
    mask = examples / "masks/00000.png"
    save_mask(torch.eye(9, dtype=torch.int64), mask)
    with pytest.raises(UserError, match=r"has 9×9 pixels, but its image .* has 32×24"):
        api.segment(small_encoder(), examples, new, out)
    save_mask(torch.zeros(24, 32, dtype=torch.int64), mask)
    with pytest.raises(UserError, match="contain 1 class; label at least two"):
        api.segment(small_encoder(), examples, new, out)
    assert not out.exists()
