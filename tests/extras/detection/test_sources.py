"""Sources with objects: every layout, and one sentence for each kind of mistake."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.extras.detection.detect import Detect, DetectConfig
from asterism.extras.detection.sources import run_lengths
from asterism.extras.detection.sources.open import open_objects
from tests.extras.detection.drawn import coco_file


def picture(path: Path, size: tuple[int, int] = (24, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((*size, 3), dtype=np.uint8)).save(path)


def test_coco_with_holes_crowds_and_an_image_without_boxes(tmp_path: Path) -> None:
    source = open_objects(str(coco_file(tmp_path)))
    assert source.classes == ["square", "bar"]  # by id, 7 and 90
    assert source.class_counts() == [9, 9]
    assert len(source[0].objects.labels) == 0
    objects = source[1].objects
    assert objects.labels.tolist() == [1, 0, 0]
    assert objects.crowd.tolist() == [False, False, True]
    assert objects.masks is not None
    masks = run_lengths.decode(objects.masks, (24, 32))
    assert masks[2].sum() == 96
    assert masks[2, :, :4].all()
    for box, mask in zip(objects.boxes.int().tolist(), masks, strict=True):
        inside = torch.zeros_like(mask)
        inside[box[1] : box[3], box[0] : box[2]] = True
        assert torch.equal(mask, inside)
    assert open_objects(str(tmp_path / "coco.json")).fingerprint == source.fingerprint
    with pytest.raises(UnknownSplit):
        open_objects(str(tmp_path / "coco.json"), "val")


def test_compressed_run_lengths(tmp_path: Path) -> None:
    mask = torch.rand(24, 32, generator=torch.Generator().manual_seed(0)) < 0.3

    def compress(content: dict[str, Any]) -> None:
        counts = run_lengths.encode(mask[None])[0]["counts"].decode()
        content["annotations"][0]["segmentation"] = {"size": [24, 32], "counts": counts}

    source = open_objects(str(coco_file(tmp_path, compress)))
    objects = source[1].objects
    assert objects.masks is not None
    assert torch.equal(run_lengths.decode(objects.masks[:1], (24, 32))[0], mask)


MISTAKES: dict[str, tuple[Any, str]] = {
    "outside": (
        lambda c: c["annotations"][0].update(bbox=[25, 2, 30, 8]),
        "which is outside its image of 32×24 pixels",
    ),
    "no area": (
        lambda c: c["annotations"][0].update(bbox=[5, 2, 0, 8]),
        "which has no area; correct or remove it, or leave out",
    ),
    "nan": (lambda c: c["annotations"][0].update(bbox=[5, 2, float("nan"), 8]), "which is not in pixels"),
    "no annotations": (lambda c: c.update(annotations=[]), "has no annotations; there is nothing to learn"),
    "no images": (lambda c: c.update(images=[]), "has no images; there is nothing to learn"),
    "category": (lambda c: c["annotations"][0].update(category_id=8), "has the unknown category 8"),
    "image": (lambda c: c["annotations"][0].update(image_id=3), "belongs to image 3, which is not in images"),
    "mask size": (
        lambda c: c["annotations"][0].update(segmentation={"size": [9, 9], "counts": [81]}),
        "has a mask of 9×9 pixels, but its image has 32×24",
    ),
    "runs": (
        lambda c: c["annotations"][0].update(segmentation={"size": [24, 32], "counts": "0000"}),
        "run lengths that do not add up",
    ),
    "line": (lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4]]), "without a polygon of at least three"),
    "no box": (lambda c: c["annotations"][0].pop("bbox"), "'bbox' is missing"),
    "missing file": (lambda c: c["images"][3].update(file_name="gone.png"), "gone.png"),
    "same name": (lambda c: c["categories"][0].update(name="bar"), "two categories with the name 'bar'"),
    "empty class": (
        lambda c: c["categories"].append({"id": 99, "name": "ring"}),
        "1 of the 3 classes of coco.json have no objects: ring",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_annotations_is_one_sentence(mistake: str, tmp_path: Path) -> None:
    changes, message = MISTAKES[mistake]
    path = coco_file(tmp_path, changes, images=4)
    with pytest.raises(UserError) as error:
        Detect.open(DetectConfig(), str(path), None)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_flawed_boxes_can_be_left_out(tmp_path: Path) -> None:
    def spoil(content: dict[str, Any]) -> None:
        content["annotations"][0].update(bbox=[5, 2, 0, 8])
        content["annotations"][1].update(bbox=[25, 2, 30, 8])

    path = coco_file(tmp_path, spoil)
    source = Detect.open(DetectConfig(flawed_boxes="leave-out"), str(path), None)
    assert source[1].objects.crowd.tolist() == [True]
    assert source[2].objects.labels.tolist() == [1, 0]


def test_files_that_are_not_annotations(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("empty.json", "not valid JSON"),
        ("list.json", "it must be a COCO instance annotation file"),
        ("a.txt", "is not an annotation file"),
        ("folder", "has no objects with boxes"),
        ("nothing.json", "no such file or folder"),
    ):
        with pytest.raises(UserError, match=message):
            open_objects(str(tmp_path / name))


VOC = """<annotation><size><width>32</width><height>24</height><depth>3</depth></size>
<object><name>{name}</name><bndbox><xmin>3</xmin><ymin>2</ymin><xmax>10</xmax><ymax>24</ymax></bndbox></object>
</annotation>"""


def test_voc_and_ilsvrc(tmp_path: Path) -> None:
    voc, imagenet = tmp_path / "VOC2012", tmp_path / "ILSVRC"
    (voc / "Annotations").mkdir(parents=True)
    (voc / "ImageSets" / "Main").mkdir(parents=True)
    for name in ("one", "two"):
        picture(voc / "JPEGImages" / f"{name}.jpg")
        (voc / "Annotations" / f"{name}.xml").write_text(VOC.format(name="dog"))
        (voc / "ImageSets" / "Main" / f"{'train' if name == 'one' else 'val'}.txt").write_text(f"{name}\n")
        picture(imagenet / "Data" / "CLS-LOC" / "train" / f"n{name}" / f"n{name}_1.JPEG")
        place = imagenet / "Annotations" / "CLS-LOC" / "train" / f"n{name}"
        place.mkdir(parents=True)
        (place / f"n{name}_1.xml").write_text(VOC.format(name=f"n{name}"))
    found = open_objects(str(voc))
    assert (len(found), len(found.classes or [])) == (1, 20)
    assert found[0].objects.boxes.tolist() == [[2, 1, 10, 24]]
    assert open_objects(str(voc), "val").keys() == ["JPEGImages/two.jpg"]
    assert not found.has_masks
    other = open_objects(str(imagenet))
    assert other.classes == ["none", "ntwo"]
    assert other[1].objects.labels.tolist() == [1]
    with pytest.raises(UserError, match="head = mask-rcnn learns masks, but VOC2012/train has boxes only"):
        Detect.open(DetectConfig(), str(voc), None)
    (voc / "Annotations" / "one.xml").write_text("<annotation><object></object></annotation>")
    with pytest.raises(UserError, match="an object without name or bndbox"):
        open_objects(str(voc))


def test_yolo(tmp_path: Path) -> None:
    for name, line in (("a", "1 0.5 0.5 0.25 0.5\n"), ("b", "0 0 0 0.5 0 0.5 1 0 1\n"), ("c", None)):
        picture(tmp_path / "images" / "train" / f"{name}.png")
        (tmp_path / "labels" / "train").mkdir(parents=True, exist_ok=True)
        if line is not None:
            (tmp_path / "labels" / "train" / f"{name}.txt").write_text(line)
    (tmp_path / "data.yaml").write_text("names: {0: cat, 1: dog}\n")
    found = open_objects(str(tmp_path))
    assert found.classes == ["cat", "dog"]
    assert found[0].objects.boxes.tolist() == [[12, 6, 20, 18]]
    assert found[1].objects.boxes.tolist() == [[0, 0, 16, 24]]
    assert len(found[2].objects.labels) == 0
    assert not found.has_masks  # one object has a box only
    (tmp_path / "labels" / "train" / "a.txt").write_text("0 0.1 0.1 0.4 0.1 0.4 0.4\n")
    assert open_objects(str(tmp_path)).has_masks
    (tmp_path / "labels" / "train" / "a.txt").write_text("7 0.5 0.5 0.25 0.5\n")
    with pytest.raises(UserError, match="has labels of class 7, but names only 2 classes"):
        open_objects(str(tmp_path))
    (tmp_path / "labels" / "train" / "a.txt").write_text("1 0.5 0.5\n")
    with pytest.raises(UserError, match="line 1 has 3 numbers"):
        open_objects(str(tmp_path))


def test_uavdt(tmp_path: Path) -> None:
    for frame in (1, 2):
        picture(tmp_path / "UAV-benchmark-M" / "M0101" / f"img{frame:06d}.jpg")
    truth = tmp_path / "UAV-benchmark-MOTD_v1.0" / "GT"
    truth.mkdir(parents=True)
    (truth / "M0101_gt_whole.txt").write_text("1,1,4,5,10,6,1,1,3\n")
    (truth / "M0101_gt_ignore.txt").write_text("1,-1,20,0,8,8,1,-1,-1\n")
    (tmp_path / "M_attr" / "train").mkdir(parents=True)
    (tmp_path / "M_attr" / "train" / "M0101_attr.txt").write_text("")
    found = open_objects(str(tmp_path), "train")
    assert found.classes == ["car", "truck", "bus"]
    assert found[0].objects.labels.tolist() == [2, 0, 1, 2]
    assert found[0].objects.crowd.tolist() == [False, True, True, True]
    assert found[0].objects.boxes[0].tolist() == [4, 5, 14, 11]
    assert len(found[1].objects.labels) == 0


def test_annotations_of_another_image_are_noticed(tmp_path: Path) -> None:
    path = coco_file(tmp_path)
    picture(tmp_path / "3.png", (20, 20))
    with pytest.raises(UserError, match=r"3.png has 20×20 pixels, but its annotations are for 32×24"):
        open_objects(str(path))[3]


def test_test_images_take_the_numbers_of_the_training_classes(tmp_path: Path) -> None:
    from tests.extras.detection.drawn import detector

    task = detector("faster-rcnn")
    task.classes = ("bar", "square", "other")
    source = task.labelled_like_training(open_objects(str(coco_file(tmp_path))))
    assert task.truth(source[1]).labels.tolist() == [0, 1, 1]
    task.classes = ("bar", "ball")
    with pytest.raises(UserError, match="has the class 'square', which the model was not trained on"):
        task.labelled_like_training(open_objects(str(tmp_path / "coco.json")))


def test_the_predicted_file_is_a_coco_file(tmp_path: Path) -> None:
    from tests.extras.detection.drawn import SAMPLES, detector

    task = detector("mask-rcnn").eval()
    writer = task.writer(tmp_path)
    with torch.no_grad():
        found = task.predict([SAMPLES[0].image, SAMPLES[1].image])
    for key, sample, prediction in zip(("a.png", "b.png"), SAMPLES, found, strict=False):
        writer.add(key, sample.image, prediction)
        Image.fromarray(sample.image.permute(1, 2, 0).numpy()).save(tmp_path / key)
    written = writer.close()
    assert [path.name for path in written] == ["predictions.json", "coco-results.json"]
    content = json.loads(written[0].read_text())
    assert len(content["annotations"]) == len(json.loads(written[1].read_text())) == 20
    again = open_objects(str(written[0]))
    assert again.classes == ["c0", "c1", "c2"]
    for index, prediction in enumerate(found):
        torch.testing.assert_close(again[index].objects.boxes, prediction.boxes, atol=0.02, rtol=0)
        assert prediction.run_lengths is not None
        assert [m["counts"] for m in again[index].objects.masks or ()] == [m["counts"] for m in prediction.run_lengths]
