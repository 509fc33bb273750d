from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.evals.dense_nn import DenseNn, DenseNnConfig
from asterism.evals.measure import run_protocol
from asterism.evals.parts import DataChoice
from asterism.evals.result import Model
from asterism.nn.encoder import Encoder
from asterism.types import Features
from tests.evals.samples import small_encoder
from tests.evals.segmented_samples import write_camvid


class MeanColours(Encoder):
    """The mean colour of every 8×8 patch: what tells the halves apart."""

    def __init__(self) -> None:
        super().__init__(small_encoder().backbone)

    def forward(self, pixels: torch.Tensor) -> Features:
        means = F.avg_pool2d(pixels, 8)
        patches = means.flatten(2).mT
        return Features(cls=patches.mean(1), patches=patches, grid=(means.shape[2], means.shape[3]))


def _evaluation(folder: Path, **settings: object) -> DenseNn:
    config = DenseNnConfig.parse(settings)
    return DenseNn(config, DenseNn.open_parts(config, DataChoice(str(folder))))


def test_halves_of_two_colours_are_found(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 6, "test": 3}, size=(16, 32))
    values = dict(_evaluation(tmp_path, k=3, shares=[1, 0.5], draws=2).measure(MeanColours()))
    assert list(values) == ["miou_patches", "miou_pixels", "miou_patches_1of2", "miou_pixels_1of2"]
    assert values["miou_patches"] == 100.0
    assert values["miou_pixels"] > 85  # bilinear upsampling moves borders by a pixel or so


@pytest.mark.parametrize("rule", ["mode", "soft"])
def test_other_labels_of_patches(tmp_path: Path, rule: str) -> None:
    write_camvid(tmp_path, {"train": 4, "test": 2}, size=(16, 32))
    values = dict(_evaluation(tmp_path, k=2, shares=[1], patch_labels=rule).measure(MeanColours()))
    assert values["miou_patches"] == 100.0


def test_more_neighbours_than_patches_and_void_are_defined(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 3, "val": 1}, size=(16, 32))
    Image.fromarray(np.full((16, 32), 11, dtype=np.uint8)).save(tmp_path / "trainannot" / "001.png")
    values = dict(_evaluation(tmp_path, k=500, shares=[0.01, 1], draws=1).measure(small_encoder()))
    assert all(0 <= value <= 100 for value in values.values())


def test_nothing_but_void_is_refused(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 1, "val": 1})
    void = Image.fromarray(np.full((16, 24), 11, dtype=np.uint8))
    void.save(tmp_path / "valannot" / "000.png")
    with pytest.raises(UserError, match=r"every pixel of .*/val is void"):
        dict(_evaluation(tmp_path, shares=[1]).measure(small_encoder()))
    void.save(tmp_path / "trainannot" / "000.png")
    with pytest.raises(UserError, match=r"every patch of .*/train is void"):
        dict(_evaluation(tmp_path, shares=[1]).measure(small_encoder()))


def test_scenes_and_one_part_alone(tmp_path: Path) -> None:
    config = DenseNnConfig.parse({"k": 5, "shares": [1]})
    choice = DataChoice("scenes:size=32,count=12")
    result = run_protocol("dense-nn", config, choice, small_encoder(), Model("small"), {})
    assert result.constants["multiple"] == 8
    write_camvid(tmp_path, {"train": 5})
    assert "1) were held out" in _evaluation(tmp_path).notes()[0]


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="shares"):
        DenseNnConfig.parse({"shares": [2]})
