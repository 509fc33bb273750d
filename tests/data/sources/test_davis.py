import pickle
from pathlib import Path

import pytest
import torch

from asterism.data.sources.videos import SceneFrames, VideoSource, open_videos
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.images.masks import save_mask
from tests.data.clips import write_davis


def test_frames_and_masks_in_order(tmp_path: Path) -> None:
    source = open_videos(str(write_davis(tmp_path, {"b": 3, "a": 2})))
    assert isinstance(source, VideoSource)
    assert source.clips == {"b": range(3), "a": range(3, 5)}
    sample = source[4]
    assert sample.key == "a/00001"
    assert sample.image.shape == (3, 24, 32)
    assert sample.instances is not None
    assert sample.instances.unique().tolist() == [0, 1, 2]
    assert source.name == f"{tmp_path.name}/val"


def test_errors_are_reported(tmp_path: Path) -> None:
    root = write_davis(tmp_path, {"a": 3})
    with pytest.raises(UserError, match="no video split 'train'; it has val"):
        open_videos(str(root), "train")
    (root / "JPEGImages/480p/a/00002.jpg").write_bytes(b"no image")
    with pytest.raises(BadImage, match="a/00002"):
        open_videos(str(root))[2]
    save_mask(torch.zeros(9, 9, dtype=torch.int64), root / "Annotations/480p/a/00001.png")
    with pytest.raises(UserError, match=r"00001.png has 9×9 pixels, but its frame .* has 32×24"):
        open_videos(str(root))[1]
    (root / "Annotations/480p/a/00001.png").unlink()
    with pytest.raises(UserError, match="1 of 3 frames of a have no mask"):
        open_videos(str(root))
    (root / "ImageSets/2017/val.txt").write_text("a\nz\n")
    with pytest.raises(UserError, match="names z, which"):
        open_videos(str(root))
    with pytest.raises(UserError, match="JPEGImages/480p is missing"):
        open_videos(str(tmp_path / "ImageSets"))
    with pytest.raises(UserError, match="has no videos with masks"):
        open_videos("cifar10")


def test_scenes_move(tmp_path: Path) -> None:
    source = open_videos("scenes:size=32,videos=2,frames=4,count=500")
    assert isinstance(source, SceneFrames)
    assert list(source.clips.values()) == [range(4), range(4, 8)]
    assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint
    assert not source[4].image.equal(source[5].image)
    with pytest.raises(UserError, match="did you mean 'frames'"):
        open_videos("scenes:frame=3")
