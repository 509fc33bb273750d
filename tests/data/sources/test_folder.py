import os
from pathlib import Path

import numpy as np
import pytest

from asterism.data.sources.folder import Folder, open_folder
from asterism.data.sources.source import Source
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from tests.data.pictures import picture, write, write_classes


def keys(folder: Folder) -> list[str]:
    return [folder[i].key for i in range(len(folder))]


def test_a_folder_of_any_nesting(tmp_path: Path) -> None:
    write(tmp_path / "b.png", 1)
    write(tmp_path / "deep/er/a.png", 2)
    folder = open_folder(tmp_path)
    assert isinstance(folder, Source)
    assert folder.name == tmp_path.name
    assert folder.classes is None
    assert keys(folder) == ["b.png", "deep/er/a.png"]
    assert folder.label(1) is None
    sample = folder[1]
    assert sample.label is None
    assert np.array_equal(sample.image.permute(1, 2, 0).numpy(), np.array(picture(2)))


def test_class_folders(tmp_path: Path) -> None:
    write_classes(tmp_path, {"dog": 2, "cat": 1, "a-b": 1})
    write(tmp_path / "cat" / "more" / "x.png")
    folder = open_folder(tmp_path)
    assert folder.classes == ["a-b", "cat", "dog"]
    for index, key in enumerate(keys(folder)):
        assert folder.classes[folder.label(index)] == key.partition("/")[0]
        assert folder[index].label == folder.label(index)


def test_classes_have_the_names_of_a_list_that_has_all_of_them(tmp_path: Path) -> None:
    """The list is in the folder, or next to a part that is opened alone."""
    write_classes(tmp_path / "train", {"n02": 1, "n01": 1, "n03": 1})
    write_classes(tmp_path / "val", {"n02": 1, "n03": 1})
    (tmp_path / "classes.txt").write_text("n03\tcrane\nn01\tcrane\nn02\tgoldfish, Carassius\nn09\tgoose\n")
    names = ["crane (n01)", "goldfish, Carassius", "crane (n03)"]
    for folder in (open_folder(tmp_path), open_folder(tmp_path, "val"), open_folder(tmp_path / "train")):
        assert folder.classes == names
    assert open_folder(tmp_path, "val").label(0) == 1
    assert open_folder(tmp_path, "all").classes == names
    (tmp_path / "classes.txt").write_text("n03\tcrane\nn01\towl\n")
    assert open_folder(tmp_path).classes == ["n01", "n02", "n03"]


def test_labels_can_be_required_or_ignored(tmp_path: Path) -> None:
    write_classes(tmp_path / "one", {"images": 3})
    assert open_folder(tmp_path / "one", labels=True).classes == ["images"]
    write_classes(tmp_path / "two", {"a": 1, "b": 1})
    assert open_folder(tmp_path / "two", labels=False).classes is None
    write(tmp_path / "two" / "c.png")
    with pytest.raises(UserError, match=r"c\.png"):
        open_folder(tmp_path / "two", labels=True)


def test_splits(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 2, "dog": 1, "owl": 1})
    write_classes(tmp_path / "validation", {"dog": 2, "owl": 1})
    train, held_out = open_folder(tmp_path), open_folder(tmp_path, "val")
    assert train.name == f"{tmp_path.name}/train"
    assert held_out.name == f"{tmp_path.name}/validation"
    assert keys(train)[0] == "train/cat/0.png"
    assert train.classes == held_out.classes == ["cat", "dog", "owl"]
    assert [held_out.label(i) for i in range(3)] == [1, 1, 2]
    assert len(open_folder(tmp_path, "test")) == 3
    with pytest.raises(UnknownSplit, match="train, validation"):
        open_folder(tmp_path, "extra")


def test_classes_missing_from_training_come_last(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 1, "dog": 1})
    write_classes(tmp_path / "test", {"bee": 1, "dog": 1})
    held_out = open_folder(tmp_path, "test")
    assert held_out.classes == ["cat", "dog", "bee"]
    assert [held_out.label(i) for i in range(2)] == [2, 1]


def test_all_splits_together(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"cat": 1, "dog": 1})
    write_classes(tmp_path / "test", {"cat": 1, "dog": 1})
    folder = open_folder(tmp_path, "all")
    assert folder.keys() == ["test/cat/0.png", "test/dog/0.png", "train/cat/0.png", "train/dog/0.png"]
    assert folder.classes == ["cat", "dog"]
    assert [folder.label(index) for index in range(4)] == [0, 1, 0, 1]
    assert folder.name == f"{tmp_path.name}/all"
    assert open_folder(tmp_path, "all", labels=False).classes is None
    write(tmp_path / "train" / "stray.png")
    assert open_folder(tmp_path, "all").classes is None
    with pytest.raises(UserError, match="images outside SPLIT/CLASS"):
        open_folder(tmp_path, "all", labels=True)


def test_a_subfolder_called_test_alone_is_not_a_split(tmp_path: Path) -> None:
    write_classes(tmp_path, {"2019": 1, "2020": 2, "test": 1})
    assert len(open_folder(tmp_path)) == 4
    with pytest.raises(UnknownSplit):
        open_folder(tmp_path, "train")


def test_keys_are_unicode_even_if_names_are_not(tmp_path: Path) -> None:
    try:
        write(tmp_path / os.fsdecode(b"\xff.png"))
    except OSError:
        pytest.skip("this file system requires Unicode names")
    sample = open_folder(tmp_path)[0]
    assert sample.key == "\\xff.png"
    sample.key.encode()


def test_fingerprint(tmp_path: Path) -> None:
    write_classes(tmp_path / "one" / "train", {"a": 1, "b": 1})
    write_classes(tmp_path / "one" / "val", {"a": 1, "b": 2})
    write_classes(tmp_path / "two", {"a": 1, "b": 1})
    one, two = open_folder(tmp_path / "one"), open_folder(tmp_path / "two")
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != open_folder(tmp_path / "one", "val").fingerprint
