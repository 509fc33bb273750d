"""Pascal Context in the layout of mmsegmentation: VOC 2010's images with masks of 59 classes and the background.

JPEGImages/, SegmentationClassContext/NAME.png, ImageSets/SegmentationContext/train.txt and val.txt, in the folder that
is given or below VOCdevkit/VOC2010. Label 0 is the background, which counts as a class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asterism.data.sources.segmented import Item, Segmented, SegmentedSource, check_item, identity_labels
from asterism.inputs import read_text

_LISTS = Path("ImageSets") / "SegmentationContext"
_MASKS = "SegmentationClassContext"
CLASSES = (
    "background", "aeroplane", "bag", "bed", "bedclothes", "bench", "bicycle", "bird", "boat", "book", "bottle",
    "building", "bus", "cabinet", "car", "cat", "ceiling", "chair", "cloth", "computer", "cow", "cup", "curtain", "dog",
    "door", "fence", "floor", "flower", "food", "grass", "ground", "horse", "keyboard", "light", "motorbike",
    "mountain", "mouse", "person", "plate", "platform", "potted plant", "road", "rock", "sheep", "shelves", "sidewalk",
    "sign", "sky", "snow", "sofa", "table", "track", "train", "tree", "truck", "tv monitor", "wall", "water", "window",
    "wood",
)  # fmt: skip


def pascal_context(root: Path) -> dict[str, Callable[[], SegmentedSource]]:
    """Openers of the parts; none if the folder is not Pascal Context."""
    home = next((place for place in (root, root / "VOCdevkit" / "VOC2010") if (place / _LISTS).is_dir()), None)
    if home is None:
        return {}

    def opener(name: str) -> Callable[[], SegmentedSource]:
        def items() -> list[Item]:
            keys = read_text(home / _LISTS / f"{name}.txt").split()
            return [
                check_item(Item(key, home / "JPEGImages" / f"{key}.jpg", home / _MASKS / f"{key}.png")) for key in keys
            ]

        return lambda: Segmented(f"pascal-context/{name}", items(), CLASSES, identity_labels(len(CLASSES)))

    return {file.stem: opener(file.stem) for file in sorted((home / _LISTS).glob("*.txt"))}
