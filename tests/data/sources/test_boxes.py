import json
import pickle
from pathlib import Path

import pytest
from PIL import Image

from asterism.data import open_source
from asterism.data.sources.boxes import BoxedSquares, boxes_of_label, read_boxes, with_boxes
from asterism.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for name in ("a", "b"):
            place = tmp_path / split / name
            place.mkdir(parents=True)
            Image.new("L" if name == "b" else "RGB", (30, 20), 90).save(place / "0.png")
    boxes = {
        "train/a/0.png": [2, 3, 10, 12],
        "train/b/0.png": [[0, 0, 0, 0], [5, 5, 9, 19]],
        "val/a/0.png": [0, 0, 29, 19],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    return tmp_path


def test_corners_are_inclusive(folder: Path) -> None:
    boxes = read_boxes(folder / "boxes.json")
    assert boxes["train/a/0.png"].tolist() == [[2, 3, 11, 13]]
    assert boxes["train/b/0.png"].tolist() == [[0, 0, 1, 1], [5, 5, 10, 20]]


def test_samples_have_the_boxes_of_their_path(folder: Path) -> None:
    plain = open_source(str(folder), "train")
    source = pickle.loads(pickle.dumps(with_boxes(plain, str(folder))))
    assert [source[i].boxes.tolist() for i in range(2)] == [[[2, 3, 11, 13]], [[0, 0, 1, 1], [5, 5, 10, 20]]]
    assert (len(source), source.classes, source.name, source.label(1)) == (2, ["a", "b"], plain.name, 1)
    assert source.fingerprint != plain.fingerprint
    assert with_boxes(plain, str(folder / "train")) is plain, "no boxes.json there"


def test_batches_contain_images_without_boxes(folder: Path) -> None:
    source = with_boxes(open_source(str(folder), "val"), str(folder))
    batch = BoxedSquares(8, 10)(source[place] for place in range(len(source)))
    assert batch.images.shape == (2, 3, 8, 8)
    assert batch.sizes[0] == (20, 30)
    assert [boxes.tolist() for boxes in batch.boxes] == [[[0, 0, 30, 20]], []]


def test_scenes_have_the_box_of_the_labelled_object() -> None:
    source = open_source("scenes:size=32,count=30")
    several = 0
    for index in range(len(source)):
        sample = source[index]
        own = boxes_of_label(sample)
        expected = [
            box.tolist()
            for number, box in enumerate(sample.boxes.double())
            if (sample.semantic[sample.instances == 1 + number] == 1 + sample.label).all()
        ]
        assert own.tolist() == expected
        assert own[0].equal(sample.boxes[0].double()), "the first thing is the dominant one"
        several += len(own) < len(sample.boxes)
    assert several > 0, "some scenes also hold things of other classes"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read .*boxes.json"),
        ("[1]", "holds a list; it must map"),
        ('{"x.png": [3, 4, 1, 9]}', r"the box of 'x.png' is \[3, 4, 1, 9\]; write"),
        ('{"x.png": [3, 4, 9]}', r"the box of 'x.png' is \[3, 4, 9\]"),
        ('{"x.png": "left"}', r"the box of 'x.png' is left"),
        ('{"x.png": []}', r"the box of 'x.png' is \[\]"),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "boxes.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_boxes(tmp_path / "boxes.json")
