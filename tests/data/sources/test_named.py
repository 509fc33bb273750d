import pickle
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision
from PIL import Image

from asterism.data.sources.catalog import NAMED, dataset_names
from asterism.data.sources.named import open_named
from asterism.data.sources.source import Source
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from tests.data.pictures import picture, write_classes


class FakeDataset:
    """Behaves like torchvision's CIFAR-10: available after a download, with the labels in `targets`."""

    classes = ("cat", "dog")
    reachable = True

    def __init__(self, root: Path, train: bool, download: bool) -> None:
        if not (root / "data").exists():
            if not download:
                raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
            if not self.reachable:
                raise urllib.error.URLError("no network")
            (root / "data").touch()
        self.targets = [0, 1, 1] if train else [1]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == 2:
            raise OSError("broken")
        return picture(index), self.targets[index]


@pytest.fixture
def fake_dataset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeDataset]:
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", FakeDataset)
    monkeypatch.setenv("ASTERISM_DATASETS", str(tmp_path / "sets"))
    return FakeDataset


def test_a_data_set_is_downloaded_when_needed(fake_dataset: type[FakeDataset], monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_named("cifar10")
    assert isinstance(source, Source)
    assert source.name == "cifar10/train"
    assert source.classes == ["cat", "dog"]
    assert [source.label(i) for i in range(3)] == [0, 1, 1]
    assert np.array_equal(source[1].image.permute(1, 2, 0).numpy(), np.array(picture(1)))
    assert (source[1].key, source[1].label) == ("1", 1)
    monkeypatch.setattr(fake_dataset, "reachable", False)
    held_out = open_named("cifar10", "val")
    assert (held_out.name, len(held_out)) == ("cifar10/test", 1)
    assert held_out.fingerprint != source.fingerprint
    assert pickle.loads(pickle.dumps(source))[0].key == "0"


def test_without_a_network(fake_dataset: type[FakeDataset], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fake_dataset, "reachable", False)
    with pytest.raises(UserError) as caught:
        open_named("cifar10")
    message = str(caught.value)
    assert all(part in message for part in ("cifar10", "no network", str(tmp_path / "sets"), "ASTERISM_DATASETS"))
    assert not (tmp_path / "sets" / "cifar10").exists()


def test_an_unknown_split(fake_dataset: type[FakeDataset]) -> None:
    with pytest.raises(UnknownSplit, match="test, train"):
        open_named("cifar10", "extra")


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def needs_scipy(**arguments: Any) -> None:
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(torchvision.datasets, "SVHN", needs_scipy)
    with pytest.raises(UserError, match="pip install scipy"):
        open_named("svhn")


@pytest.mark.parametrize(
    ("attributes", "labels", "classes"),
    [
        ({"labels": np.array([2, 0])}, [2, 0], ["0", "1", "2"]),
        ({"_labels": [1, 0], "classes": ["a", "b"]}, [1, 0], ["a", "b"]),
        ({"_samples": [("x.png", 1), ("y.png", 0)], "classes": [("a", "alpha"), ("b",)]}, [1, 0], ["a, alpha", "b"]),
        ({"labels": np.array([-1, -1])}, [None, None], None),
    ],
)
def test_labels_are_found_under_every_attribute_name(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, Any], labels: list[int | None], classes: list[str] | None
) -> None:
    class Other:
        def __init__(self, **arguments: Any) -> None:
            self.__dict__ |= attributes

        def __len__(self) -> int:
            return 2

    monkeypatch.setattr(torchvision.datasets, "STL10", Other)
    source = open_named("stl10", "unlabeled")
    assert [source.label(i) for i in range(2)] == labels
    assert source.classes == classes


def test_imagenet_is_a_folder_that_the_user_provides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTERISM_DATASETS", str(tmp_path))
    with pytest.raises(UserError, match=r"image-net\.org"):
        open_named("imagenet")
    write_classes(tmp_path / "imagenet" / "train", {"n01": 1, "n02": 1})
    write_classes(tmp_path / "imagenet" / "val", {"n01": 1, "n02": 1})
    assert open_named("imagenet", "val").classes == ["n01", "n02"]


def test_torchvision_has_every_named_data_set() -> None:
    assert all(hasattr(torchvision.datasets, entry.loader) for entry in NAMED.values())
    assert {"cifar10", "imagenet", "scenes"} <= set(dataset_names())
    assert all(dataset_names().values())
