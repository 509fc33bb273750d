import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from asterism import api
from asterism.errors import UserError
from asterism.features.mask_tracking import Tracking, mutual_agreement
from asterism.images.masks import read_mask, save_mask
from tests.data.clips import frame_and_mask, write_frames
from tests.evals.samples import MeanColours, small_encoder

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


def test_an_object_that_disappears_is_lost_and_one_that_returns_is_found(tmp_path: Path) -> None:
    """The red square vanishes from the third frame on; the blue one is absent in the third frame only."""
    video, grey = tmp_path / "frames", torch.tensor([120], dtype=torch.uint8)
    video.mkdir()
    for number in range(6):
        image, mask = frame_and_mask(0)
        gone = ((mask == 1) & (number >= 2)) | ((mask == 2) & (number == 2))
        pixels = torch.where(gone, grey, image).permute(1, 2, 0).contiguous().numpy()
        Image.fromarray(pixels).save(video / f"{number:05d}.png")
    save_mask(frame_and_mask(0)[1], tmp_path / "first.png")
    settings = {"short_side": 24, "multiple": 2, "radius": 3}
    tracked = api.track(MeanColours(2), video, tmp_path / "first.png", tmp_path / "out", **settings)
    assert [(loss.object, loss.first, loss.last) for loss in tracked.lost] == [
        (1, "00002", None),
        (2, "00002", "00002"),
    ]
    assert all(loss.confidence < 0.5 for loss in tracked.lost)
    summary = json.loads((tmp_path / "out/tracking.json").read_text())
    assert summary["lost"][0]["first"] == "00002"
    assert summary["confidence"]["2"]["00000"] == 1
    assert summary["confidence"]["2"]["00005"] > 0.9


def test_agreement_is_that_of_a_slow_loop_and_falls_when_the_mask_drifts() -> None:
    """Four patches, object in the first two. A mask on another patch that looks alike misses the object."""
    config = Tracking.parse({"topk": 1})
    first = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    # In this frame the object is at the first two patches again, and the third looks more like it than like the rest.
    now = torch.tensor([[1.0, 0.01, 0.0], [0.9, 0.11, 0.0], [0.8, 0.5, 0.0], [0.0, 0.1, 1.0]])
    start = torch.tensor([[0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]).reshape(2, 1, 4)

    def agreement(*own: int) -> float:
        mask = torch.tensor([[float(i not in own) for i in range(4)], [float(i in own) for i in range(4)]])
        return float(mutual_agreement(now, first, mask.reshape(2, 1, 4), start, config)[1])

    assert agreement(0, 1) == pytest.approx(1)
    assert agreement(2) == pytest.approx(0)  # it looks like the object, but the object is elsewhere
    assert agreement(0, 1, 3) == pytest.approx((2 / 3 * 1) ** 0.5)  # one patch of three is not the object's
    assert agreement(0) == pytest.approx((1 * 1 / 2) ** 0.5)  # half of the object is missed
    assert agreement() == 0
