import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.data.parts import DataChoice
from asterism.data.sources.own_masks import own_classes
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.errors import UserError
from asterism.evals.dense_nn import DenseNnConfig
from asterism.evals.linear_seg import LinearSegConfig
from asterism.evals.run import run_protocol
from asterism.images.masks import VOID
from asterism.types import Model
from tests.evals.samples import MeanColours
from tests.evals.segmented_samples import halves, write_camvid

COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 128, 0]], dtype=np.uint8)


def write_pairs(images: Path, masks: Path, values: object, count: int = 6) -> Path:
    """Images with two halves out of three classes, stored as these values."""
    images.mkdir(parents=True, exist_ok=True)
    masks.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image, mask = halves(number, (16, 32))
        image.save(images / f"{number}.jpg", quality=95)
        Image.fromarray(np.asarray(values, dtype=np.uint8)[mask]).save(masks / f"{number}.png")
    return images.parent


def test_classes_are_the_values_found(tmp_path: Path) -> None:
    source = open_segmented(write_pairs(tmp_path / "images", tmp_path / "masks", [0, 7, 40]))
    assert source.pixel_classes == ["background", "7", "40"]
    assert source[1].semantic is not None
    assert source[1].semantic[0].tolist() == [1] * 16 + [2] * 16
    assert source.keys()[0] == "images/0.jpg"
    assert pickle.loads(pickle.dumps(source))[1].semantic.equal(source[1].semantic)


def test_void_and_white(tmp_path: Path) -> None:
    void = open_segmented(write_pairs(tmp_path / "a/images", tmp_path / "a/masks", [0, 1, 255]))
    assert void.pixel_classes == ["background", "1"]
    assert void[1].semantic.unique().tolist() == [1, VOID]
    white = open_segmented(write_pairs(tmp_path / "b/images", tmp_path / "b/masks", [0, 255, 255]))
    assert white.pixel_classes == ["background", "1"]
    assert white[1].semantic.unique().tolist() == [1]


def test_colours_have_the_same_meaning_in_every_mask(tmp_path: Path) -> None:
    source = open_segmented(write_pairs(tmp_path / "images", tmp_path / "masks", COLOURS))
    assert source.pixel_classes == ["background", "#008000", "#ff0000"]
    assert source[0].semantic.unique().tolist() == [0, 2], "although green is not in this mask"
    Image.fromarray(np.zeros((16, 32), dtype=np.uint8)).save(tmp_path / "masks/0.png")
    with pytest.raises(UserError, match=r"an index image, .* is a colour image"):
        open_segmented(tmp_path)


def test_names_are_read_from_a_file(tmp_path: Path) -> None:
    write_pairs(tmp_path / "images", tmp_path / "masks", [0, 1, 3])
    (tmp_path / "classes.txt").write_text("ground\nwater\nnever seen\ntree\n")
    source = open_segmented(tmp_path)
    assert source.pixel_classes == ["ground", "water", "never seen", "tree"]
    assert source[1].semantic.unique().tolist() == [1, 3]
    (tmp_path / "classes.txt").write_text("ground\nwater\n")
    with pytest.raises(UserError, match=r"classes\.txt names 2 classes, but masks hold the number 3"):
        open_segmented(tmp_path)
    write_pairs(tmp_path / "images", tmp_path / "masks", [0, 255, 255])
    source = open_segmented(tmp_path)
    assert source.pixel_classes == ["ground", "water"]
    assert source[1].semantic.unique().tolist() == [1]


@pytest.mark.parametrize("layout", ["{}/images {}/masks", "images/{} masks/{}", "{} {}annot"])
def test_parts_share_their_classes(tmp_path: Path, layout: str) -> None:
    for name, values, count in (("train", [0, 5, 5], 3), ("val", [0, 0, 9], 2)):
        images, masks = (tmp_path / part for part in layout.format(name, name).split())
        write_pairs(images, masks, values, count)
    train, val = open_segmented(tmp_path), open_segmented(tmp_path, "val")
    assert (len(train), len(val)) == (3, 2)
    assert train.pixel_classes == val.pixel_classes == ["background", "5", "9"]


def test_two_classes_are_not_those_of_camvid(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 1, "test": 1})  # number 0 has the classes 0 and 1
    assert open_segmented(tmp_path).pixel_classes == ["background", "1"]
    (tmp_path / "classes.txt").write_text("street\nother\n")
    assert open_segmented(tmp_path).pixel_classes == ["street", "other"]


def test_smoothed_masks_are_rejected(tmp_path: Path) -> None:
    values = np.arange(512, dtype=np.uint16).reshape(16, 32)
    Image.fromarray(values).save(tmp_path / "m.png")
    with pytest.raises(UserError, match="512 different values, more than 255"):
        own_classes([tmp_path / "m.png"])
    Image.fromarray(values.clip(max=1) * 300).save(tmp_path / "m.png")
    with pytest.raises(UserError, match="hold the value 300; number classes from 0 to 254"):
        own_classes([tmp_path / "m.png"])


@pytest.mark.parametrize("protocol", ["dense-nn", "linear-seg"])
def test_protocols_show_every_class(tmp_path: Path, protocol: str) -> None:
    write_pairs(tmp_path / "images", tmp_path / "masks", [0, 7, 40])
    (tmp_path / "classes.txt").write_text("\n".join(["ground", *map(str, range(1, 40)), "tree"]))
    config = (
        DenseNnConfig(k=3, shares=(1.0,), holdout=0.5)
        if protocol == "dense-nn"
        else LinearSegConfig(learning_rates=(0.3,), epochs=2, holdout=0.5)
    )
    result = run_protocol(protocol, config, DataChoice(str(tmp_path)), MeanColours(), Model("colours"))
    assert result.constants["classes"] == 41
    shown = {name: value for name, value in result.values.items() if name.startswith("iou/")}
    assert list(shown) == ["iou/ground", "iou/7", "iou/tree"], "the classes that test images have"
    if protocol == "dense-nn":
        assert np.mean(list(shown.values())) == pytest.approx(result.values["miou_pixels"])
