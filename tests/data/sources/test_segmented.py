import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.data.sources.segmented import NearestMultiple, SegmentedSource, Square, segmented_batches
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.data.sources.source import stamp
from asterism.errors import UserError
from asterism.images.masks import VOID
from tests.evals.segmented_samples import halves, write_camvid


def _save(path: Path, mask: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(mask, dtype=np.uint8)).save(path)


def test_camvid(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 2, "val": 1})
    mask = halves(0)[1].copy()
    mask[0, :3] = 11
    _save(tmp_path / "trainannot" / "000.png", mask)
    source = open_segmented(tmp_path)
    assert isinstance(source, SegmentedSource)
    assert len(source.pixel_classes) == 11
    sample = source[0]
    assert sample.key == "train/000.png"
    assert sample.semantic is not None
    expected = torch.from_numpy(mask)
    assert sample.semantic.equal(torch.where(expected == 11, VOID, expected))
    assert len(open_segmented(tmp_path, "test")) == 1, "val stands in for test"
    assert pickle.loads(pickle.dumps(source))[1].semantic.equal(source[1].semantic)


def test_voc(tmp_path: Path) -> None:
    home = tmp_path / "VOCdevkit" / "VOC2012"
    (home / "JPEGImages").mkdir(parents=True)
    halves(0)[0].save(home / "JPEGImages" / "a.jpg")
    _save(home / "SegmentationClass" / "a.png", np.where(halves(0)[1] == 1, 255, 20))
    lists = home / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\n")
    (lists / "val.txt").write_text("b\n")
    source = open_segmented(tmp_path)
    assert source.pixel_classes[20] == "tv monitor"
    assert source[0].semantic.unique().tolist() == [20, VOID]
    with pytest.raises(UserError, match=r"image .*b\.jpg is missing"):
        open_segmented(tmp_path, "val")


def test_the_augmented_training_images_of_voc(tmp_path: Path) -> None:
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    halves(0)[0].save(tmp_path / "JPEGImages/a.jpg")
    _save(tmp_path / "SegmentationClassAug/a.png", np.where(halves(0)[1] == 1, 255, 7))
    (tmp_path / "ImageSets/Segmentation/trainaug.txt").write_text("a\n")
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text("a\n")
    assert open_segmented(tmp_path, "trainaug")[0].semantic.unique().tolist() == [7, VOID]
    with pytest.raises(UserError, match=r"SegmentationClass/a\.png is missing"):
        open_segmented(tmp_path)


def test_ade20k_labels_start_at_one(tmp_path: Path) -> None:
    (tmp_path / "images" / "training").mkdir(parents=True)
    halves(0)[0].save(tmp_path / "images" / "training" / "a.png")
    _save(tmp_path / "annotations" / "training" / "a.png", np.where(halves(0)[1] == 1, 150, 0))
    source = open_segmented(tmp_path)
    assert len(source.pixel_classes) == 150
    assert source[0].semantic.unique().tolist() == [149, VOID]


def test_cityscapes_keeps_nineteen_classes(tmp_path: Path) -> None:
    image = tmp_path / "leftImg8bit" / "train" / "ulm" / "ulm_0_leftImg8bit.png"
    image.parent.mkdir(parents=True)
    halves(0)[0].save(image)
    _save(tmp_path / "gtFine" / "train" / "ulm" / "ulm_0_gtFine_labelIds.png", np.where(halves(0)[1] == 1, 33, 4))
    source = open_segmented(tmp_path)
    assert source.pixel_classes[0] == "road"
    assert source[0].semantic.unique().tolist() == [18, VOID]


def test_coco_instances_become_classes(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    halves(0)[0].save(tmp_path / "images" / "a.png")
    objects = [
        {"id": 1, "image_id": 5, "category_id": 90, "area": 4, "segmentation": [[2, 2, 4, 2, 4, 4, 2, 4]]},
        {"id": 2, "image_id": 5, "category_id": 3, "area": 99, "segmentation": [[0, 0, 9, 0, 9, 9, 0, 9]]},
        {
            "id": 3,
            "image_id": 5,
            "category_id": 3,
            "area": 16,
            "iscrowd": 1,
            "segmentation": {"size": [16, 24], "counts": [16 * 23, 16]},  # the last column
        },
    ]
    content = {
        "images": [{"id": 5, "file_name": "a.png", "height": 16, "width": 24}],
        "annotations": objects,
        "categories": [{"id": 90, "name": "cup"}, {"id": 3, "name": "table"}],
    }
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances.json").write_text(json.dumps(content))
    source = open_segmented(tmp_path)
    assert source.pixel_classes == ["background", "table", "cup"]
    mask = source[0].semantic
    assert mask[3, 3] == 2, "the smaller object is drawn over the larger one"
    assert mask[8, 8] == 1
    assert mask[12, 12] == 0
    assert (mask[:, 23] == VOID).all()


def test_real_coco(real_data: Path) -> None:
    """Areas as annotated, for images with a single object."""
    root = real_data / "coco128"
    content = json.loads((root / "annotations" / "instances.json").read_text())
    objects: dict[int, list[float]] = {}
    for annotation in content["annotations"]:
        objects.setdefault(annotation["image_id"], []).append(annotation["area"])
    source = open_segmented(root, "val")
    assert len(source) == 32
    assert len(source.pixel_classes) == 81
    compared = 0
    for place, item in enumerate(source.items):
        areas = objects.get(item.mask, [])
        if len(areas) == 1 and areas[0] > 5000:
            assert int((source[place].semantic > 0).sum()) == pytest.approx(areas[0], rel=0.03)
            compared += 1
    assert compared


def test_masks_of_another_size_are_rejected(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 1})
    _save(tmp_path / "trainannot" / "000.png", np.zeros((8, 8)))
    with pytest.raises(UserError, match=r"24×16 pixels, but its mask 8×8"):
        list(segmented_batches(open_segmented(tmp_path), Square(8), batch_size=2))


def test_labels_beyond_the_classes_are_rejected(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 2})
    _save(tmp_path / "trainannot" / "000.png", np.full((16, 24), 12))
    _save(tmp_path / "trainannot" / "001.png", np.full((16, 24), 11))
    with pytest.raises(UserError, match=r"label 12; .* labels 0 … 11 and 255"):
        open_segmented(tmp_path)[0]


def test_missing_and_coloured_masks_are_rejected(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 2})
    halves(0)[0].save(tmp_path / "trainannot" / "000.png")
    with pytest.raises(UserError, match="384 different values"):
        open_segmented(tmp_path)[0]
    (tmp_path / "trainannot" / "001.png").unlink()
    with pytest.raises(UserError, match=r"1 images of .* have no mask.*001\.png"):
        open_segmented(tmp_path)


def test_batches_have_one_size_and_leave_out_bad_images(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 5})
    (tmp_path / "train" / "000.png").write_bytes(b"no image")
    image, mask = halves(3, (24, 16))
    image.save(tmp_path / "train" / "003.png")
    _save(tmp_path / "trainannot" / "003.png", mask)
    source = open_segmented(tmp_path)
    batches = list(segmented_batches(source, NearestMultiple(8), batch_size=5))
    expected = [[1, 2], [3], [4]]
    for batch, places in zip(batches, expected, strict=True):
        for mask, place in zip(batch.full_masks, places, strict=True):
            assert mask.equal(source[place].semantic)
    assert batches[1].images.shape == (1, 3, 24, 16)
    assert batches[0].masks[0].equal(batches[0].full_masks[0])


def test_sizes() -> None:
    assert NearestMultiple(16)(360, 480) == (352, 480)  # 22.5 patches round to the even number
    assert NearestMultiple(16, 240)(360, 480) == (176, 240)
    assert NearestMultiple(16, 960)(360, 480) == (352, 480), "images are reduced, never enlarged"
    assert NearestMultiple(16)(3, 5) == (16, 16)


def test_a_stamp_detects_other_files_under_the_same_names(tmp_path: Path) -> None:
    write_camvid(tmp_path, {"train": 2})
    before, name = stamp(open_segmented(tmp_path)), open_segmented(tmp_path).fingerprint
    _save(tmp_path / "trainannot" / "001.png", np.full((16, 24), 2))
    assert stamp(open_segmented(tmp_path)) != before
    assert open_segmented(tmp_path).fingerprint == name


def test_pascal_context_has_its_own_masks_next_to_those_of_voc(tmp_path: Path) -> None:
    home = tmp_path / "VOCdevkit" / "VOC2010"
    (home / "JPEGImages").mkdir(parents=True)
    halves(0)[0].save(home / "JPEGImages" / "a.jpg")
    _save(home / "SegmentationClassContext" / "a.png", np.where(halves(0)[1] == 1, 59, 0))
    for kind in ("Segmentation", "SegmentationContext"):
        (home / "ImageSets" / kind).mkdir(parents=True)
        (home / "ImageSets" / kind / "train.txt").write_text("a\n")
    source = open_segmented(tmp_path)
    assert len(source.pixel_classes) == 60
    assert source.pixel_classes[59] == "wood"
    assert source[0].semantic is not None
    assert source[0].semantic.unique().tolist() == [0, 59]
    (home / "ImageSets" / "SegmentationContext" / "val.txt").write_text("missing\n")
    with pytest.raises(UserError, match=r"the image .*missing\.jpg is missing"):
        open_segmented(tmp_path, "val")


@pytest.mark.parametrize(("suffix", "values"), [("", (91, 181, 11)), ("_labelTrainIds", (80, 170, 255))])
def test_coco_stuff_as_published_and_as_converted(tmp_path: Path, suffix: str, values: tuple[int, ...]) -> None:
    (tmp_path / "images" / "train2017").mkdir(parents=True)
    image, mask = halves(0)
    image.save(tmp_path / "images" / "train2017" / "000000000009.jpg")
    labels = np.where(mask == 1, values[0], values[1])
    labels[0, :2] = values[2]
    _save(tmp_path / "annotations" / "train2017" / f"000000000009{suffix}.png", labels)
    (tmp_path / "annotations" / "instances_train2017.json").write_text("{}")
    source = open_segmented(tmp_path)
    assert source.name == "coco-stuff/train"
    assert (len(source.pixel_classes), source.pixel_classes[80]) == (171, "banner")
    assert source[0].semantic is not None
    assert source[0].semantic.unique().tolist() == [80, 170, VOID]
