from pathlib import Path

import pytest

from asterism.data.parts import DataChoice, class_balanced, labels_of, open_labelled
from asterism.errors import UserError
from tests.evals.samples import write_colours


def test_named_splits_are_used(tmp_path: Path) -> None:
    write_colours(tmp_path / "train", 4)
    write_colours(tmp_path / "val", 2, seed=1)
    parts = open_labelled(DataChoice(str(tmp_path)), 0.2, 0)
    assert (len(parts.train), len(parts.test), parts.notes) == (12, 6, ())
    other_way = open_labelled(DataChoice(str(tmp_path), "val", "train"), 0.2, 0)
    assert (len(other_way.train), len(other_way.test)) == (6, 12)


def test_a_fifth_of_every_class_is_held_out(tmp_path: Path) -> None:
    write_colours(tmp_path, 10)
    parts = open_labelled(DataChoice(str(tmp_path)), 0.2, 0)
    train, test = ({source[i].key for i in range(len(source))} for source in (parts.train, parts.test))
    assert not train & test
    assert len(train | test) == 30
    assert sorted(labels_of(parts.test)) == [0, 0, 1, 1, 2, 2]
    assert "no test part" in parts.notes[0]
    again = open_labelled(DataChoice(str(tmp_path)), 0.2, 0)
    assert again.test.fingerprint == parts.test.fingerprint
    assert open_labelled(DataChoice(str(tmp_path)), 0.2, 1).test.fingerprint != parts.test.fingerprint


def test_small_classes_keep_a_training_image(tmp_path: Path) -> None:
    write_colours(tmp_path, 2)
    for image in list((tmp_path / "red").iterdir())[1:]:
        image.unlink()
    parts = open_labelled(DataChoice(str(tmp_path)), 0.9, 0)
    assert sorted(labels_of(parts.train)) == [0, 1, 2]
    assert sorted(labels_of(parts.test)) == [0, 1]


def test_one_image_per_class_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one image per class"):
        open_labelled(DataChoice(str(write_colours(tmp_path, 1))), 0.2, 0)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    write_colours(tmp_path, 2)
    (tmp_path / "violet").mkdir()
    with pytest.raises(UserError, match="because its subfolder 'violet' has no image: remove it or fill it"):
        open_labelled(DataChoice(str(tmp_path)), 0.2, 0)


def test_testing_on_the_training_images_is_rejected(tmp_path: Path) -> None:
    write_colours(tmp_path / "train", 2)
    write_colours(tmp_path / "test", 2)
    with pytest.raises(UserError, match="training and test images are the same"):
        open_labelled(DataChoice(str(tmp_path), "train", "train"), 0.2, 0)


def test_shares_are_class_balanced() -> None:
    labels = [0] * 100 + [1] * 10 + [2] * 3
    chosen = class_balanced(labels, 0.1, seed=0)
    assert [sum(labels[i] == c for i in chosen) for c in range(3)] == [10, 1, 1]
    assert chosen == sorted(set(chosen))
    assert chosen == class_balanced(labels, 0.1, seed=0)
    assert chosen != class_balanced(labels, 0.1, seed=1)
