"""Data sets that can be opened by name. Nothing heavy is imported here, so listing them is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asterism.data.sources.splits import EVERYTHING
from asterism.plugins import plugins

SCENES = "scenes"  # synthetic, drawn on the fly
IMAGENET = "imagenet"  # its licence forbids automatic download

_Parts = dict[str, dict[str, Any]]
_FLAG: _Parts = {"train": {"train": True}, "test": {"train": False}}


def _by_split(*names: str) -> _Parts:
    return {name: {"split": name} for name in names}


@dataclass(frozen=True)
class Entry:
    """A data set in torchvision: its class there, and the arguments for each of our splits."""

    loader: str
    parts: _Parts
    about: str


NAMED: dict[str, Entry] = {
    "aircraft": Entry("FGVCAircraft", _by_split("train", "val", "test"), "10,000 photographs of 100 aircraft"),
    "cars": Entry(
        "StanfordCars", _by_split("train", "test"), "16,185 photographs of 196 cars; to be copied there by hand"
    ),
    "cifar10": Entry("CIFAR10", _FLAG, "60,000 images of 32 px, 10 classes"),
    "cifar100": Entry("CIFAR100", _FLAG, "60,000 images of 32 px, 100 classes"),
    "country211": Entry("Country211", _by_split("train", "valid", "test"), "63,300 photographs from 211 countries"),
    "dtd": Entry("DTD", _by_split("train", "val", "test"), "5,640 images of 47 kinds of texture"),
    "eurosat": Entry("EuroSAT", {EVERYTHING: {}}, "27,000 satellite images of 64 px, 10 classes"),
    "fashion-mnist": Entry("FashionMNIST", _FLAG, "70,000 grey images of clothes, 28 px, 10 classes"),
    "flowers102": Entry("Flowers102", _by_split("train", "val", "test"), "8,189 photographs of 102 flowers"),
    "food101": Entry("Food101", _by_split("train", "test"), "101,000 photographs of 101 dishes"),
    "imagenette": Entry("Imagenette", _by_split("train", "val"), "13,394 images of 10 easy ImageNet classes"),
    "mnist": Entry("MNIST", _FLAG, "70,000 grey digits of 28 px, 10 classes"),
    "pets": Entry(
        "OxfordIIITPet",
        {"train": {"split": "trainval"}, "test": {"split": "test"}},
        "7,349 photographs of 37 breeds of cats and dogs",
    ),
    "stl10": Entry(
        "STL10",
        _by_split("train", "test", "unlabeled"),
        "13,000 images of 96 px, 10 classes; 100,000 more in the split 'unlabeled'",
    ),
    "sun397": Entry("SUN397", {EVERYTHING: {}}, "108,754 images of 397 kinds of scene"),
    "svhn": Entry("SVHN", _by_split("train", "test", "extra"), "99,289 house numbers of 32 px, 10 classes"),
}


def dataset_names() -> dict[str, str]:
    """Every data set that can be opened by name, with a description."""
    known = {name: entry.about for name, entry in NAMED.items()}
    known[IMAGENET] = "1,281,167 images of 1,000 classes; to be downloaded by hand"
    known[SCENES] = "built in: drawn scenes of textured objects, with labels, masks and boxes"
    added = {name: plugin.summary() for name, plugin in plugins("datasets").items()}
    return dict(sorted((added | known).items()))
