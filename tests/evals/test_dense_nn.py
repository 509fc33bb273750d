from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from asterism.data.parts import DataChoice, SegmentedParts
from asterism.data.sources.segmented import SegmentedSubset
from asterism.errors import UserError
from asterism.evals.dense_nn import DenseNn, DenseNnConfig
from asterism.features import dense_tokens
from asterism.ops.random import generator
from tests.evals.samples import MeanColours, small_encoder
from tests.evals.segmented_samples import write_camvid


def _evaluation(folder: Path, **settings: object) -> DenseNn:
    config = DenseNnConfig.parse(settings)
    return DenseNn(config, DenseNn.open_parts(config, DataChoice(str(folder))))


def test_halves_of_two_colours_are_found(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 6, "test": 3}, size=(16, 32))
    values = dict(_evaluation(tmp_path, k=3, shares=[1, 0.5], draws=2).measure(MeanColours()))
    means = ["miou_patches", "miou_pixels", "miou_patches_1of2", "miou_pixels_1of2"]
    assert list(values) == [*means, "iou/background", "iou/1", "iou/2"]
    assert values["miou_patches"] == 100.0
    assert values["miou_pixels"] > 85  # bilinear upsampling moves borders by a pixel or so


def test_more_neighbours_than_patches_and_void_are_defined(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 3, "val": 1}, size=(16, 32))
    Image.fromarray(np.full((16, 32), 11, dtype=np.uint8)).save(tmp_path / "trainannot" / "001.png")
    values = dict(_evaluation(tmp_path, k=500, shares=[0.01, 1], draws=1).measure(small_encoder()))
    assert all(0 <= value <= 100 for value in values.values())


def test_data_with_only_void_is_rejected(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 1, "val": 1})
    void = Image.fromarray(np.full((16, 24), 11, dtype=np.uint8))
    void.save(tmp_path / "valannot" / "000.png")
    with pytest.raises(UserError, match=r"every pixel of .*/val is void"):
        dict(_evaluation(tmp_path, shares=[1]).measure(small_encoder()))
    void.save(tmp_path / "trainannot" / "000.png")
    with pytest.raises(UserError, match=r"every patch of .*/train is void"):
        dict(_evaluation(tmp_path, shares=[1]).measure(small_encoder()))


@pytest.mark.parametrize("classes", [3, 40])
def test_the_best_class_of_a_pixel_is_that_of_the_whole_stack(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_tokens, "_CLASSES", 4)
    scores = torch.randn(4 * 5, classes, generator=generator(classes))
    shares = (8 * scores).softmax(1).where(torch.arange(classes) % 3 != 1, 0.0)  # some classes have no votes at all
    for values in (scores, shares / shares.sum(1, keepdim=True)):
        large = F.interpolate(values.mT.reshape(1, classes, 4, 5), (29, 37), mode="bilinear")[0]
        found = dense_tokens.pixels_from_patches(values, (4, 5), (29, 37))
        assert found.equal(large.argmax(0))
    nan = torch.full((20, classes), float("nan"))
    assert dense_tokens.pixels_from_patches(nan, (4, 5), (8, 8)).shape == (8, 8)


def test_draws_are_scored_independently(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 6, "test": 3}, size=(16, 32))
    together = dict(_evaluation(tmp_path, k=3, shares=[1, 0.5], draws=3).measure(small_encoder()))
    whole = dict(_evaluation(tmp_path, k=3, shares=[1]).measure(small_encoder()))
    alone = []
    for draw in range(3):
        evaluation = _evaluation(tmp_path, k=3, shares=[0.5])
        chosen = evaluation._drawn(6, 0.5, draw)
        train = SegmentedSubset(evaluation.parts.train, chosen)
        single = DenseNn(DenseNnConfig(k=3, shares=(1.0,)), SegmentedParts(train, evaluation.parts.test))
        alone.append(dict(single.measure(small_encoder()))["miou_pixels"])
    assert together["miou_pixels"] == whole["miou_pixels"]
    assert together["miou_pixels_1of2"] == pytest.approx(sum(alone) / 3)
