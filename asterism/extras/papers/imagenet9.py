"""ImageNet-9: objects of nine classes with their backgrounds kept, removed or exchanged.

A folder holds one folder per variation, each with val/<class>/<image> (or <class>/<image>). The nine classes are
branches of WordNet that cover 370 of the 1,000 ImageNet classes. Built-in scenes have the same variations, with their
own classes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from asterism.data.sources.derived import Joined
from asterism.data.sources.folder import open_folder
from asterism.data.sources.scenes import Scenes
from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.ops import streams
from asterism.ops.random import fold

CLASSES = ("dog", "bird", "vehicle", "reptile", "carnivore", "insect", "instrument", "primate", "fish")
VARIATIONS = ("original", "only_fg", "mixed_same", "mixed_next", "mixed_rand", "no_fg", "only_bg_b", "only_bg_t")
OF_SCENES = ("original", "only_fg", "mixed_same", "mixed_rand", "no_fg")
NONE = -1  # an ImageNet class outside the nine

# Numbers of ImageNet classes (in the order of their WordNet identifiers) below each branch; a-b includes both ends.
_BRANCHES = {
    "dog": "151-170 173-268",
    "bird": "7-24 87-100 127-146",
    "vehicle": "407-408 428 436 444 468 511 547 555 561 565 569 573 586 603 609 612 627 656 661 665 670-671 675 690 "
    "705 717 734 751 757 791 802-803 817 820 829 847 864 866-867 870 880",
    "reptile": "33-68",
    "carnivore": "269-280 286-299 356-362 387-388",
    "insect": "300-326",
    "instrument": "401-402 420 432 486 494 513 541 546 558 566 577 579 593-594 641-642 683-684 687 699 776 822 875 881 "
    "889",
    "primate": "365-384",
    "fish": "0-6 389-397",
}


def from_imagenet() -> Int64[Tensor, " 1000"]:
    """The ImageNet-9 class of each ImageNet class, or −1."""
    mapping = torch.full((1000,), NONE)
    for number, name in enumerate(CLASSES):
        for part in _BRANCHES[name].split():
            first, _, last = part.partition("-")
            mapping[int(first) : int(last or first) + 1] = number
    return mapping


class Variations(Joined):
    """The images of all variations, one variation after the other; `parts` holds each by its name."""


def open_imagenet9(root: Path) -> Variations:
    """The variations in a folder."""
    present = [name for name in VARIATIONS if (root / name).is_dir()]
    if not present:
        raise UserError(
            f"{root} is not in ImageNet-9 layout: give a folder with some of {', '.join(VARIATIONS)}, each with "
            "val/<class>/<image>"
        )
    sources: dict[str, Source] = {}
    for name in present:
        source = open_folder(root / name, "val" if (root / name / "val").is_dir() else None, labels=True)
        if source.classes is None or len(source.classes) != len(CLASSES):
            raise UserError(
                f"{root / name} has {len(source.classes or [])} class folders; ImageNet-9 has {len(CLASSES)}: "
                + ", ".join(CLASSES)
            )
        sources[name] = source
    return Variations(root.resolve().name, sources)


class SceneVariation:
    """Scenes whose dominant object is kept, removed, or placed on the background of another scene.

    Removed pixels are black. A background taken from another scene has its own object filled with the mean colour.
    """

    def __init__(self, scenes: Scenes, variation: str) -> None:
        assert variation in OF_SCENES, variation
        self.scenes = scenes
        self.variation = variation
        self.name = f"{scenes.name}/{variation}"
        self.classes: list[str] | None = scenes.classes
        self._of_class: dict[int, list[int]] = {}  # scenes of each class
        if variation == "mixed_same":
            for place in range(len(scenes)):
                self._of_class.setdefault(self.label(place), []).append(place)

    @property
    def fingerprint(self) -> str:
        return hashlib.blake2b(f"{self.scenes.fingerprint} {self.variation}".encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> Sample:
        sample = self.scenes[index]
        image, shown = sample.image, _dominant(sample)
        if self.variation == "only_fg":
            image = image * shown
        elif self.variation == "no_fg":
            image = image * ~shown
        elif self.variation != "original":
            image = torch.where(shown, image, _background(self.scenes[self._other(index)]))
        return Sample(image, sample.key, sample.label)

    def label(self, index: int) -> int:
        return self.scenes.label(index)

    def keys(self) -> list[str]:
        return self.scenes.keys()

    def files(self) -> tuple[Path, ...]:
        return ()

    def _other(self, index: int) -> int:
        """The scene that provides the background: a function of the scenes and the index."""
        places = self._of_class[self.label(index)] if self.variation == "mixed_same" else range(len(self))
        return places[fold(self.scenes.seed, streams.ScenesSeed.BACKGROUNDS, index) % len(places)]


def scene_variations(scenes: Scenes) -> Variations:
    return Variations(scenes.name, {name: SceneVariation(scenes, name) for name in OF_SCENES})


def _dominant(sample: Sample) -> Tensor:
    """The mask of the object that gives the scene its label."""
    assert sample.instances is not None
    return sample.instances == 1


def _background(sample: Sample) -> UInt8[Tensor, "3 h w"]:
    """A scene without its dominant object."""
    shown = _dominant(sample)
    if bool(shown.all()):
        return torch.zeros_like(sample.image)
    mean = sample.image[:, ~shown].float().mean(dim=1).round().to(torch.uint8)
    return torch.where(shown, mean[:, None, None], sample.image)
