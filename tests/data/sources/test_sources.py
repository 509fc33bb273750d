"""Requirements for every source: it lists its keys, and its files, so that changes are detected."""

import importlib
import inspect
import io
import json
import os
import pickle
import pkgutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import asterism.data.sources
import asterism.extras.detection.sources
import asterism.extras.papers
import asterism.extras.words.sources
from asterism.data.sources.boxes import with_boxes
from asterism.data.sources.davis import open_davis
from asterism.data.sources.derived import Joined, Relabelled, Subset, Wrapped
from asterism.data.sources.folder import open_folder
from asterism.data.sources.named import Named
from asterism.data.sources.scenes import Scenes
from asterism.data.sources.segmented import SegmentedScenes, SegmentedSubset
from asterism.data.sources.segmented_layouts import open_segmented
from asterism.data.sources.shards import open_shards
from asterism.data.sources.source import Source, stamp
from asterism.data.sources.videos import SceneFrames, first_videos
from asterism.extras.detection.sources.open import SceneObjects
from asterism.extras.detection.sources.source import AnnotatedImage, AnnotatedImages, Objects, RelabelledObjects
from asterism.extras.papers.imagenet9 import VARIATIONS, SceneVariation, open_imagenet9
from asterism.extras.papers.landmarks import Landmarks
from asterism.extras.words.sources.captioned import Captioned, Texts
from asterism.extras.words.sources.listed_images import ListedImages
from asterism.extras.words.sources.scene_pairs import PairedScenes
from tests.data.pictures import encoded, picture, write, write_classes


def _folder(root: Path) -> Source:
    return open_folder(write_classes(root, {"cat": 2, "dog": 2}))


def _shards(root: Path) -> Source:
    with tarfile.open(root / "a.tar", "w") as tar:
        for number in range(3):
            data = encoded(number)
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return open_shards(root / "a.tar")


def _mask(path: Path, level: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 16), level, dtype=np.uint8)).save(path)
    return path


def _davis(root: Path) -> Source:
    for frame in ("00000", "00001"):
        write(root / "JPEGImages/480p/bear" / f"{frame}.png")
        _mask(root / "Annotations/480p/bear" / f"{frame}.png")
    return open_davis(root)


def _segmented(root: Path) -> Source:
    for number in range(2):
        write(root / "train" / f"{number}.png", number)
        _mask(root / "trainannot" / f"{number}.png")
    return open_segmented(root)


def _landmarks(root: Path) -> Source:
    for name in ("a", "b"):
        write(root / "jpg" / f"{name}.png")
    return Landmarks("oxford", root, ["a", "b"])


def _imagenet9(root: Path) -> Source:
    write_classes(root / VARIATIONS[0], {f"class{number}": 1 for number in range(9)})
    return open_imagenet9(root)


class _Torchvision:
    """The interface of torchvision's data sets."""

    targets = (0, 1)

    def __init__(self, root: Path) -> None:
        write(root / "data.bin")

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return picture(index), self.targets[index]


def _boxed(root: Path) -> Source:
    source = _folder(root)
    (root / "boxes.json").write_text(json.dumps({source.keys()[0]: [1, 1, 5, 5]}))
    return with_boxes(source, str(root))


def _annotated(root: Path) -> AnnotatedImages:
    objects = Objects(
        torch.tensor([[1.0, 1.0, 5.0, 5.0]]), torch.tensor([0]), torch.tensor([False]), torch.ones(1), None
    )
    images = [AnnotatedImage(f"{n}.png", write(root / f"{n}.png", n), None, objects) for n in range(2)]
    labels = root / "labels.json"
    labels.write_text("{}")
    return AnnotatedImages("drawn", images, ["thing", "other"], [*(image.path for image in images), labels])


OPENERS: dict[str, Callable[[Path], Source]] = {
    "Folder": _folder,
    "Shards": _shards,
    "Davis": _davis,
    "Segmented": _segmented,
    "Landmarks": _landmarks,
    "Variations": _imagenet9,
    "Joined": lambda root: Joined("both", {"a": _folder(root / "a"), "b": _folder(root / "b")}),
    "Named": lambda root: Named("cifar10/train", _Torchvision(root), root),
    "WithBoxes": _boxed,
    "Relabelled": lambda root: Relabelled(_folder(root), ["dog", "bird", "cat"], [2, 0]),
    "Wrapped": lambda root: Wrapped(_folder(root)),
    "Subset": lambda root: Subset(_folder(root), [3, 0]),
    "SegmentedSubset": lambda root: SegmentedSubset(_segmented(root), [1]),
    "AnnotatedImages": _annotated,
    "RelabelledObjects": lambda root: RelabelledObjects(_annotated(root), ["other", "thing"], [1, 0]),
    "SceneObjects": lambda root: SceneObjects(Scenes(size=16, count=3)),
    "Scenes": lambda root: Scenes(size=16, count=3),
    "SegmentedScenes": lambda root: SegmentedScenes(Scenes(size=16, count=3)),
    "SceneVariation": lambda root: SceneVariation(Scenes(size=16, count=3), "only_fg"),
    "SceneFrames": lambda root: SceneFrames(size=16, videos=2, frames=3),
    "_FirstVideos": lambda root: first_videos(SceneFrames(size=16, videos=2, frames=3), 1),
    "ListedImages": lambda root: ListedImages("list", root, _folder(root).keys(), root / "list.jsonl"),
    "Captioned": lambda root: Captioned(_folder(root), [Texts(("a",))] * len(_folder(root))),
    "PairedScenes": lambda root: PairedScenes(Scenes(size=16, count=3)),
}
_HOMES = (
    asterism.data.sources,
    asterism.extras.detection.sources,
    asterism.extras.papers,
    asterism.extras.words.sources,
)
WITHOUT_FILES = "Scenes SceneObjects SegmentedScenes SceneVariation SceneFrames _FirstVideos PairedScenes"


def _source_classes() -> set[str]:
    """Every class of the package's sources and satellites that returns images by number."""
    found = set()
    for home in _HOMES:
        for module in pkgutil.walk_packages(home.__path__, f"{home.__name__}."):
            for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                own = kind.__module__ == module.name and not getattr(kind, "_is_protocol", False)
                if own and all(hasattr(kind, method) for method in ("__getitem__", "__len__", "label")):
                    found.add(name)
    return found


def test_every_source_of_the_package_is_tested_here() -> None:
    assert _source_classes() == set(OPENERS), "a new source needs a line in OPENERS"


@pytest.mark.parametrize("kind", OPENERS)
def test_keys_are_those_of_the_samples(kind: str, tmp_path: Path) -> None:
    source = OPENERS[kind](tmp_path)
    assert type(source).__name__ == kind
    assert isinstance(source, Source)
    assert source.keys() == [source[index].key for index in range(len(source))]
    assert len(set(source.keys())) == len(source)


@pytest.mark.parametrize("kind", OPENERS)
def test_a_copy_for_a_worker_is_the_same_source(kind: str, tmp_path: Path) -> None:
    source = OPENERS[kind](tmp_path)
    copy = pickle.loads(pickle.dumps(source))
    assert (copy.fingerprint, copy.name, copy.classes) == (source.fingerprint, source.name, source.classes)
    assert torch.equal(copy[len(copy) - 1].image, source[len(source) - 1].image)
    for index in (-1, len(source)):
        with pytest.raises(IndexError):
            source[index]


@pytest.mark.parametrize("kind", OPENERS)
def test_an_overwritten_file_is_detected(kind: str, tmp_path: Path) -> None:
    source = OPENERS[kind](tmp_path)
    files = list(source.files())
    assert (not files) == (kind in WITHOUT_FILES.split())
    before = stamp(source)
    assert stamp(source) == before
    for file in files:
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
        after = stamp(source)
        assert after != before, f"{file} was overwritten"
        before = after


def test_a_broken_link_has_a_stamp(tmp_path: Path) -> None:
    source = _folder(tmp_path)
    before = stamp(source)
    next(iter(source.files())).unlink()
    assert stamp(source) != before
