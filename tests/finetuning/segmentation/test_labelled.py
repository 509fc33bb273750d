"""Labelled images: what is refused before anything is written, and classes in the model's numbering."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import asterism
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.errors import UserError
from asterism.finetuning.segmentation.labelled import numbered_like
from asterism.images.masks import VOID
from tests.finetuning.segmentation.drawn import drawn_folder
from tests.train.tiny import TEACHER


def _other_size(folder: Path) -> None:
    Image.fromarray(np.zeros((9, 9), dtype=np.uint8)).save(folder / "masks" / "7.png")


def _unused_class(folder: Path) -> None:
    (folder / "classes.txt").write_text("background\nrectangle\ndisc\nunicorn\n")


def _one_class(folder: Path) -> None:
    (folder / "classes.txt").unlink()
    for path in (folder / "masks").iterdir():
        with Image.open(path) as mask:
            Image.fromarray(np.zeros_like(np.asarray(mask))).save(path)


def _empty(folder: Path) -> None:
    for path in [*folder.rglob("*.png"), folder / "classes.txt"]:
        path.unlink()


def _too_large_label(folder: Path) -> None:
    Image.fromarray(np.full((24, 32), 9, dtype=np.uint8)).save(folder / "masks" / "0.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_other_size, r"images/7\.png has 32×25 pixels, but its mask 9×9"),
        (_unused_class, "1 of the 4 classes of .* have no pixels: unicorn"),
        (_one_class, "has 1 class .background.; segmentation needs at least two"),
        (_empty, "has no masks in a known layout"),
        (_too_large_label, "names 3 classes, but masks hold the number 9"),
    ],
)
def test_bad_folders_are_refused_before_anything_is_written(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    data = drawn_folder(tmp_path / "data")
    spoil(data)
    with pytest.raises(UserError, match=message):
        asterism.finetune(TEACHER, "segment", data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_test_images_are_numbered_as_the_classes_of_the_model(tmp_path: Path) -> None:
    source = open_segmented(drawn_folder(tmp_path))
    classes = ("disc", "sky", "background", "rectangle")
    renumbered = numbered_like(source, classes)
    before, after = source[0].semantic, renumbered[0].semantic
    assert before is not None
    assert after is not None
    for old, new in ((0, 2), (1, 3), (2, 0)):
        assert torch.equal(before == old, after == new)
    assert numbered_like(source, tuple(source.pixel_classes)) is source
    with pytest.raises(UserError, match="has the class 'disc', which the model was not trained on"):
        numbered_like(source, ("background", "rectangle"))


def test_void_stays_void(tmp_path: Path) -> None:
    data = drawn_folder(tmp_path)
    mask = np.zeros((24, 32), dtype=np.uint8)
    mask[:4] = VOID
    mask[9:, 9:] = 1
    Image.fromarray(mask).save(data / "masks" / "0.png")
    labels = numbered_like(open_segmented(data), ("disc", "background", "rectangle"))[0].semantic
    assert labels is not None
    assert (labels[:4] == VOID).all()
    assert (labels[9:, 9:] == 2).all()
