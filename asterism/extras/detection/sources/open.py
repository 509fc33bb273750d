"""Opening images with objects: an annotation file, a folder in one of the usual layouts, or built-in scenes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from asterism.data.sources import splits
from asterism.data.sources.catalog import SCENES
from asterism.data.sources.derived import Wrapped
from asterism.data.sources.open import open_source
from asterism.data.sources.source import Source
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.extras.detection.sources import run_lengths
from asterism.extras.detection.sources.coco import coco_parts, open_coco_file, open_coco_part
from asterism.extras.detection.sources.source import Objects, ObjectSource, SampleWithObjects
from asterism.extras.detection.sources.uavdt import open_uavdt, uavdt_parts
from asterism.extras.detection.sources.xml import ilsvrc_parts, open_ilsvrc, open_voc, voc_parts
from asterism.extras.detection.sources.yolo import open_yolo, yolo_parts
from asterism.inputs import user_path

_Opener = Callable[[], ObjectSource]


def open_objects(path: str, split: str | None = None, *, leave_out_flawed: bool = False) -> ObjectSource:
    """Images with objects. split: a part of the data; None: the training part if there is one, else everything.

    leave_out_flawed: boxes outside their image or without area are left out, instead of an error.
    """
    place = user_path(path)
    if place.is_file():
        return _open_file(place, split, leave_out_flawed)
    if place.is_dir():
        parts = _parts(place, leave_out_flawed)
        if not parts:
            raise UserError(
                f"{path} has no objects with boxes: give a COCO annotation file, or a folder of COCO (annotations/"
                "instances*.json), Pascal VOC, ILSVRC, YOLO (images/ and labels/) or UAVDT"
            )
        if split is None and set(parts) == {splits.EVERYTHING}:
            return parts[splits.EVERYTHING]()
        return parts[splits.pick(split, parts, path)]()
    if path.partition(":")[0] == SCENES:
        return SceneObjects(open_source(path, split))
    if "/" in path or place.suffix:
        raise UserError(f"no such file or folder: {path}")
    raise UserError(f"{path} is not a data set with boxes; give a COCO annotation file, a folder, or scenes")


def _open_file(place: Path, split: str | None, leave_out: bool) -> ObjectSource:
    if place.suffix.lower() != ".json":
        raise UserError(f"{place} is not an annotation file; give COCO's JSON, or the folder of VOC, YOLO or UAVDT")
    if split is not None:
        raise UnknownSplit(f"{place} is one annotation file, without splits; leave the split out")
    return open_coco_file(place, leave_out=leave_out)


def _parts(root: Path, leave_out: bool) -> Mapping[str, _Opener]:
    """The parts of a folder, by the first layout that fits."""
    if (root / "annotations").is_dir() and (coco := coco_parts(root)):
        return {name: partial(open_coco_part, root, name, *found, leave_out=leave_out) for name, found in coco.items()}
    if voc := voc_parts(root):
        return {name: partial(open_voc, root, name, chosen, leave_out=leave_out) for name, chosen in voc.items()}
    if ilsvrc := ilsvrc_parts(root):
        return {name: partial(open_ilsvrc, root, name, folder, leave_out=leave_out) for name, folder in ilsvrc.items()}
    if uavdt := uavdt_parts(root):
        return {name: partial(open_uavdt, root, name, videos, leave_out=leave_out) for name, videos in uavdt.items()}
    return {
        name: partial(open_yolo, root, name, folder, leave_out=leave_out) for name, folder in yolo_parts(root).items()
    }


class SceneObjects(Wrapped):
    """Scenes whose samples have objects; an image as a whole has no label."""

    has_masks = True

    def __init__(self, scenes: Source) -> None:
        super().__init__(scenes)
        assert scenes.classes is not None

    def __getitem__(self, index: int) -> SampleWithObjects:
        sample = self.source[index]
        assert sample.instances is not None
        assert sample.semantic is not None
        assert sample.boxes is not None
        numbers = torch.arange(1, 1 + len(sample.boxes))
        masks = sample.instances == numbers[:, None, None]
        first = masks.flatten(1).int().argmax(dim=1)  # a pixel of each thing, to read its class
        objects = Objects(
            boxes=sample.boxes.float(),
            labels=sample.semantic.flatten()[first] - 1,
            crowd=torch.zeros(len(numbers), dtype=torch.bool),
            areas=masks.sum(dim=(1, 2)).float(),
            masks=run_lengths.encode(masks),
        )
        return SampleWithObjects(sample.image, sample.key, objects=objects)

    def label(self, index: int) -> None:
        return None

    def class_counts(self) -> list[int]:
        """The dominant things alone; every class has some in a set of usual size."""
        counts = torch.zeros(len(self.source.classes or ()), dtype=torch.int64)
        for index in range(len(self.source)):
            counts[self.source.label(index)] += 1
        return counts.tolist()
