"""COCO-Stuff 164K: COCO's images with masks of 80 kinds of things and 91 of stuff.

images/train2017/ with annotations/train2017/, and so for val2017. Masks are NAME.png as published (labels 0 … 181, of
which 11 are not used, and 255 for void), or NAME_labelTrainIds.png as mmsegmentation converts them (0 … 170 and 255).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from asterism.data.sources.segmented import Item, Segmented, SegmentedSource, check_item, identity_labels
from asterism.images.decode import SUFFIXES
from asterism.images.masks import VOID

_CONVERTED = "_labelTrainIds.png"
_PARTS = {"train": "train2017", "val": "val2017"}
_LABELS = 182
_UNUSED = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)  # categories that COCO reserved and never annotated
CLASSES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush", "banner", "blanket",
    "branch", "bridge", "building-other", "bush", "cabinet", "cage", "cardboard", "carpet", "ceiling-other",
    "ceiling-tile", "cloth", "clothes", "clouds", "counter", "cupboard", "curtain", "desk-stuff", "dirt", "door-stuff",
    "fence", "floor-marble", "floor-other", "floor-stone", "floor-tile", "floor-wood", "flower", "fog", "food-other",
    "fruit", "furniture-other", "grass", "gravel", "ground-other", "hill", "house", "leaves", "light", "mat", "metal",
    "mirror-stuff", "moss", "mountain", "mud", "napkin", "net", "paper", "pavement", "pillow", "plant-other", "plastic",
    "platform", "playingfield", "railing", "railroad", "river", "road", "rock", "roof", "rug", "salad", "sand", "sea",
    "shelf", "sky-other", "skyscraper", "snow", "solid-other", "stairs", "stone", "straw", "structural-other", "table",
    "tent", "textile-other", "towel", "tree", "vegetable", "wall-brick", "wall-concrete", "wall-other", "wall-panel",
    "wall-stone", "wall-tile", "wall-wood", "water-other", "waterdrops", "window-blind", "window-other", "wood",
)  # fmt: skip


def coco_stuff(root: Path) -> dict[str, Callable[[], SegmentedSource]]:
    """Openers of the parts; none if the folder is not COCO-Stuff."""
    return {
        part: _opener(root, part, folder)
        for part, folder in _PARTS.items()
        if (root / "images" / folder).is_dir() and next((root / "annotations" / folder).glob("*.png"), None) is not None
    }


def _opener(root: Path, part: str, folder: str) -> Callable[[], SegmentedSource]:
    def open_part() -> SegmentedSource:
        masks = root / "annotations" / folder
        is_converted = next(masks.glob(f"*{_CONVERTED}"), None) is not None
        suffix = _CONVERTED if is_converted else ".png"
        images = sorted(file for file in (root / "images" / folder).iterdir() if file.suffix.lower() in SUFFIXES)
        items = [
            check_item(Item(image.relative_to(root).as_posix(), image, masks / f"{image.stem}{suffix}"))
            for image in images
        ]
        labels = identity_labels(len(CLASSES)) if is_converted else _published_labels()
        return Segmented(f"coco-stuff/{part}", items, CLASSES, labels)

    return open_part


def _published_labels() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The class of each published label."""
    labels = np.full(_LABELS, VOID, dtype=np.uint8)
    labels[np.setdiff1d(np.arange(_LABELS), _UNUSED)] = np.arange(len(CLASSES))
    return labels
