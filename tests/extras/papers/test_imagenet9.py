from pathlib import Path

import pytest
import torch

from asterism.data import Scenes
from asterism.errors import UserError
from asterism.extras.papers.imagenet9 import CLASSES, OF_SCENES, SceneVariation, from_imagenet, open_imagenet9


def test_branches_do_not_overlap() -> None:
    mapping = from_imagenet()
    assert torch.bincount(mapping[mapping >= 0], minlength=9).tolist() == [116, 52, 42, 36, 35, 27, 26, 20, 16]


def test_variations_of_scenes() -> None:
    scenes = Scenes(size=32, count=12, split="test")
    sample = scenes[3]
    assert sample.instances is not None
    shown = sample.instances == 1
    images = {name: SceneVariation(scenes, name)[3].image for name in OF_SCENES}
    assert images["original"].equal(sample.image)
    assert (images["only_fg"] + images["no_fg"]).equal(sample.image)
    assert not images["only_fg"][:, ~shown].any()
    for name in ("mixed_same", "mixed_rand"):
        assert images[name][:, shown].equal(sample.image[:, shown])
    same = SceneVariation(scenes, "mixed_same")
    assert all(scenes.label(same._other(place)) == scenes.label(place) for place in range(12))


def test_other_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not in ImageNet-9 layout"):
        open_imagenet9(tmp_path)
    assert len(CLASSES) == 9
