"""Errors that protocols report for faulty data folders."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.data import Subset
from asterism.data.parts import DataChoice, Parts, labels_of
from asterism.errors import UserError
from asterism.evals import protocol_class
from asterism.evals.base import Evaluation
from asterism.nn.pixel_baseline import pixel_encoder
from tests.evals.samples import small_encoder, write_colours
from tests.evals.segmented_samples import write_camvid


def _evaluation(name: str, folder: Path, **settings: object) -> Evaluation:
    kind = protocol_class(name)
    config = kind.Config.parse(settings)
    return kind(config, kind.open_parts(config, DataChoice(str(folder))))


@pytest.mark.parametrize("protocol", ["dense-nn", "linear-seg"])
def test_masks_that_do_not_match(protocol: str, tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 2, "test": 1})
    mask = tmp_path / "trainannot" / "001.png"
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(mask)
    with pytest.raises(UserError, match=r"train/001.png has 24×16 pixels, but its mask 8×8"):
        dict(_evaluation(protocol, tmp_path).measure(small_encoder()))
    Image.fromarray(np.full((16, 24), 40, dtype=np.uint8)).save(mask)
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n")
    with pytest.raises(UserError, match=r"classes\.txt names 3 classes, but masks hold the number 40"):
        dict(_evaluation(protocol, tmp_path).measure(small_encoder()))
    mask.unlink()
    with pytest.raises(UserError, match=r"001"):
        dict(_evaluation(protocol, tmp_path).measure(small_encoder()))


@pytest.mark.parametrize("protocol", ["knn", "linear", "linear-sparse", "retrieval", "bbox-knn"])
def test_images_without_labels(protocol: str, tmp_path: Path) -> None:
    write_colours(tmp_path, 2)
    for image in tmp_path.glob("*/*.png"):
        image.rename(tmp_path / f"{image.parent.name}-{image.name}")
    for folder in filter(Path.is_dir, list(tmp_path.iterdir())):
        folder.rmdir()
    with pytest.raises(UserError, match="has no labels"):
        _evaluation(protocol, tmp_path)


def test_a_class_missing_from_training_is_never_predicted(tmp_path: Path) -> None:
    write_colours(tmp_path / "train", 4)
    write_colours(tmp_path / "test", 2, seed=1)
    shutil.rmtree(tmp_path / "train" / "blue")
    values = dict(_evaluation("knn", tmp_path, k=[3]).measure(pixel_encoder()))
    assert values["top1_k3"] == pytest.approx(200 / 3)


def test_a_single_class(tmp_path: Path) -> None:
    whole = _evaluation("knn", write_colours(tmp_path, 4), k=[3])
    parts = [
        Subset(part, [place for place, label in enumerate(labels_of(part)) if label == 1])
        for part in (whole.parts.train, whole.parts.test)
    ]
    for name, settings in (("knn", {"k": [2]}), ("retrieval", {})):
        kind = protocol_class(name)
        values = dict(kind(kind.Config.parse(settings), Parts(*parts)).measure(small_encoder()))
        assert next(iter(values.values())) == 100.0
    for name, settings in (("linear", {}), ("linear-sparse", {"feature": "cls"})):
        kind = protocol_class(name)
        with pytest.raises(UserError, match="have the same class; a classifier needs at least two"):
            dict(kind(kind.Config.parse(settings), Parts(*parts)).measure(small_encoder()))
