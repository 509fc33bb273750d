from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from asterism import api
from asterism.errors import UserError
from asterism.images.masks import read_mask, save_mask
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import small_encoder

SETTINGS = {"short_side": 16, "multiple": 8}


@pytest.fixture
def video(tmp_path: Path) -> Path:
    return write_frames(tmp_path / "frames", 3)


@pytest.fixture
def mask(tmp_path: Path) -> Path:
    save_mask(frame_and_mask(0)[1], tmp_path / "first.png")
    return tmp_path / "first.png"


def test_masks_overlays_and_an_animation(video: Path, mask: Path, tmp_path: Path) -> None:
    tracked = api.track(small_encoder(), video, mask, tmp_path / "out", **SETTINGS)
    assert (tracked.frames, tracked.objects) == (3, 2)
    names = ["00000", "00001", "00002"]
    assert sorted(path.stem for path in (tmp_path / "out/masks").iterdir()) == names
    assert read_mask(tmp_path / "out/masks/00000.png").equal(frame_and_mask(0)[1])
    assert set(read_mask(tmp_path / "out/masks/00002.png").unique().tolist()) <= {0, 1, 2}
    with Image.open(tmp_path / "out/overlays/00001.jpg") as image:
        assert image.size == (32, 24)
    with Image.open(tracked.animation) as moving:
        assert getattr(moving, "n_frames", 1) == 3
    with pytest.raises(UserError, match="already exists"):
        api.track(small_encoder(), video, mask, tmp_path / "out")


def _refused(video: Path, mask: Path, tmp_path: Path) -> str:
    with pytest.raises(UserError) as error:
        api.track(small_encoder(), video, mask, tmp_path / "out", **SETTINGS)
    return str(error.value)


def test_mistakes_are_named(video: Path, mask: Path, tmp_path: Path) -> None:
    assert "is a file; give a folder" in _refused(mask, mask, tmp_path)
    assert "contains one frame, 00000.jpg" in _refused(write_frames(tmp_path / "one", 1), mask, tmp_path)
    assert "no such folder of images" in _refused(tmp_path / "none", mask, tmp_path)
    assert "cannot read the mask" in _refused(video, tmp_path / "none.png", tmp_path)
    other = tmp_path / "other.png"
    save_mask(torch.ones(5, 9, dtype=torch.int64), other)
    assert "has 9×5 pixels, but the first frame" in _refused(video, other, tmp_path)
    save_mask(torch.zeros(24, 32, dtype=torch.int64), other)
    assert "is empty" in _refused(video, other, tmp_path)
    assert not (tmp_path / "out").exists()
    (video / "00001.jpg").write_bytes(b"no image")
    assert "00001.jpg: the file is not an image" in _refused(video, mask, tmp_path)
    with pytest.raises(UserError, match="radius = -1"):
        api.track(small_encoder(), video, mask, tmp_path / "other", radius=-1)
