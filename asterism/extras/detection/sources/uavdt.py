"""UAVDT: frames of drone videos with cars, trucks and buses (Du et al., 2018).

UAV-benchmark-M/<video>/img000001.jpg has the frames, and UAV-benchmark-MOTD_v1.0/GT/<video>_gt_whole.txt the boxes:
frame, target, left, top, width, height, out-of-view, occlusion, category (1 car, 2 truck, 3 bus). The regions of
<video>_gt_ignore.txt are marked as crowds of every class: nothing in them counts. M_attr/train and M_attr/test name the
videos of each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from asterism.data.sources import splits
from asterism.errors import UserError
from asterism.extras.detection.sources.source import AnnotatedImage, AnnotatedImages, Objects, usable_box
from asterism.inputs import read_text

CLASSES = ("car", "truck", "bus")
_FRAMES = "UAV-benchmark-M"
_Row = tuple[float, ...]


def uavdt_parts(root: Path) -> dict[str, list[str]]:
    """The videos of each part; without M_attr all are one part."""
    if not (root / _FRAMES).is_dir() or _truth(root) is None:
        return {}
    attributes = root / "M_attr"
    parts = {
        name: sorted({file.stem.removesuffix("_attr") for file in (attributes / name).glob("*.txt")})
        for name in ("train", "test")
        if (attributes / name).is_dir()
    }
    videos = sorted(folder.name for folder in (root / _FRAMES).iterdir() if folder.is_dir())
    return parts or {splits.EVERYTHING: videos}


def open_uavdt(root: Path, part: str, videos: Sequence[str], *, leave_out: bool) -> AnnotatedImages:
    truth = _truth(root)
    assert truth is not None
    images: list[AnnotatedImage] = []
    files: list[Path] = []
    for video in videos:
        file, ignored = truth / f"{video}_gt_whole.txt", truth / f"{video}_gt_ignore.txt"
        rows, regions = _by_frame(file), _by_frame(ignored) if ignored.is_file() else {}
        files += [file, *([ignored] if ignored.is_file() else [])]
        for path in sorted((root / _FRAMES / video).glob("*.jpg")):
            frame = int(path.stem.removeprefix("img"))
            key = path.relative_to(root).as_posix()
            images.append(
                AnnotatedImage(key, path, None, _objects(file, rows.get(frame, []), regions.get(frame, []), leave_out))
            )
    return AnnotatedImages(f"{root.resolve().name}/{part}", images, CLASSES, files)


def _objects(file: Path, rows: Sequence[_Row], regions: Sequence[_Row], leave_out: bool) -> Objects:
    boxes, labels, crowd = [], [], []
    for row in rows:
        category = int(row[8]) if len(row) > 8 else 1
        if not 1 <= category <= len(CLASSES):
            raise UserError(f"{file}: frame {row[0]:g} has the category {category}; UAVDT has 1 car, 2 truck, 3 bus")
        box = _edges(file, row, leave_out)
        if box is not None:
            boxes.append(box)
            labels.append(category - 1)
            crowd.append(False)
    for row in regions:
        box = _edges(file, row, leave_out)
        if box is not None:
            boxes += [box] * len(CLASSES)
            labels += range(len(CLASSES))
            crowd += [True] * len(CLASSES)
    if not boxes:
        return Objects.none(masks=False)
    edges = torch.tensor(boxes)
    areas = (edges[:, 2:] - edges[:, :2]).prod(dim=1)
    return Objects(edges, torch.tensor(labels), torch.tensor(crowd), areas, None)


def _edges(file: Path, row: _Row, leave_out: bool) -> tuple[float, float, float, float] | None:
    left, top, width, height = row[2:6]
    box = (max(0.0, left), max(0.0, top), left + width, top + height)
    return usable_box(box, None, f"{file}: frame {row[0]:g}", leave_out)


def _by_frame(file: Path) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = tuple(float(word) for word in line.replace(",", " ").split())
        except ValueError:
            row = ()
        if len(row) < 6:
            raise UserError(
                f"{file}: line {number} is {line[:80]!r}; it must be frame, target, left, top, width, height, …"
            )
        found.setdefault(int(row[0]), []).append(row)
    return found


def _truth(root: Path) -> Path | None:
    places = (root / "UAV-benchmark-MOTD_v1.0" / "GT", root / "GT")
    return next((place for place in places if place.is_dir()), None)
