from pathlib import Path

import pytest
import torch

from asterism.data.parts import DataChoice
from asterism.errors import UserError
from asterism.evals.run import run_protocol
from asterism.evals.video import Video, VideoConfig
from asterism.features.mask_tracking import Tracking, follow_objects, input_size
from asterism.images.masks import save_mask
from asterism.nn.encoder import Encoder
from asterism.ops.video_metrics import boundary_similarity, region_similarity
from asterism.types import Model
from tests.data.clips import frame_and_mask, write_davis
from tests.evals.samples import MeanColours, small_encoder

SETTINGS = {"short_side": 24, "multiple": 2, "radius": 3}


@pytest.fixture
def davis(tmp_path: Path) -> Path:
    return write_davis(tmp_path, {"a": 5, "b": 4})


def _values(root: Path, encoder: Encoder, **settings: object) -> dict[str, float]:
    config = VideoConfig.model_validate(SETTINGS | settings)
    return dict(Video(config, Video.open_parts(config, DataChoice(str(root)))).measure(encoder))


def test_good_features_track_moving_objects(davis: Path) -> None:
    values = _values(davis, MeanColours(2))
    assert values["j"] > 85
    assert values["j_and_f"] == pytest.approx((values["j"] + values["f"]) / 2)
    assert values["j_and_f"] > values["j_and_f_first_mask_kept"] + 5
    assert values["j_recall"] == 100


def test_the_first_and_the_last_frame_do_not_count(davis: Path) -> None:
    config = VideoConfig.model_validate(SETTINGS | {"videos": 1})
    true = [frame_and_mask(number) for number in range(5)]
    found = [frame.mask for frame in follow_objects(MeanColours(2), (image for image, _ in true), true[0][1], config)]
    j = [[region_similarity((found[t - 1] == o)[None], (true[t][1] == o)[None]) for t in (1, 2, 3)] for o in (1, 2)]
    f = [[boundary_similarity((found[t - 1] == o)[None], (true[t][1] == o)[None]) for t in (1, 2, 3)] for o in (1, 2)]
    values = _values(davis, MeanColours(2), videos=1)
    assert values["j"] == pytest.approx(100 * torch.tensor(j).mean().item(), abs=3)  # JPEG
    assert values["f"] == pytest.approx(100 * torch.tensor(f).mean().item(), abs=6)


def test_sizes_keep_the_published_proportions() -> None:
    encoder = small_encoder(224)
    assert input_size((480, 854), encoder, Tracking()) == (480, 832)
    assert input_size((854, 480), encoder, Tracking()) == (832, 480)
    assert input_size((100, 100), encoder, Tracking(short_side=50)) == (48, 48)
    assert input_size((64, 64), small_encoder(64), Tracking()) == (136, 136)


def test_the_first_videos_alone_are_measured_and_counted(davis: Path) -> None:
    config, encoder = VideoConfig.model_validate(SETTINGS | {"videos": 1}), MeanColours(2)
    result = run_protocol("video", config, DataChoice(str(davis)), encoder, Model("small"))
    assert (result.train.images, result.test.images) == (1, 5)
    alone = write_davis(davis / "alone", {"a": 5})
    assert result.values == _values(alone, encoder)
    many = VideoConfig.model_validate(SETTINGS | {"videos": 9})
    assert Video.open_parts(many, DataChoice(str(davis))).notes[-1].startswith("9 videos were requested")


@pytest.mark.parametrize("size", [1, 2, 50])
def test_the_batch_size_does_not_change_the_tracking(davis: Path, size: int) -> None:
    assert _values(davis, small_encoder(), batch_size=size) == pytest.approx(_values(davis, small_encoder()))


def test_short_videos_and_empty_masks_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the video a of .* has 1 frames; at least 3"):
        _values(write_davis(tmp_path / "one", {"a": 1}), small_encoder())
    empty = write_davis(tmp_path / "empty", {"a": 3})
    save_mask(torch.zeros(24, 32, dtype=torch.int64), empty / "Annotations/480p/a/00000.png")
    with pytest.raises(UserError, match=r"the first mask of the video a .* is empty"):
        _values(empty, small_encoder())
    broken = write_davis(tmp_path / "broken", {"a": 4})
    (broken / "JPEGImages/480p/a/00001.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="a/00001: the file is empty"):
        _values(broken, small_encoder())


def test_frames_of_another_size_are_rejected() -> None:
    frames = [frame_and_mask(0)[0], frame_and_mask(0, (24, 40))[0]]
    with pytest.raises(UserError, match="frame 2 has 40×24 pixels, but the first has 32×24"):
        list(follow_objects(small_encoder(), iter(frames), frame_and_mask(0)[1], Tracking(short_side=16)))
