"""Videos in the layout of DAVIS, with a mask in every frame.

JPEGImages/480p/<video>/<frame>.jpg, Annotations/480p/<video>/<frame>.png with object numbers, and
ImageSets/2017/val.txt with the names of the videos to use. Masks of 0 and 255, as in DAVIS 2016, contain one object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from asterism.data.sources.source import Sample
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.images.decode import SUFFIXES, decode
from asterism.images.masks import read_mask, white_as_object
from asterism.inputs import read_text

_RESOLUTION = "480p"


class Davis:
    """The frames of some videos of a DAVIS folder."""

    classes: list[str] | None = None

    def __init__(self, root: Path, split: str, videos: Mapping[str, list[Path]], annotations: Path) -> None:
        self.root = root
        self.name = f"{root.resolve().name}/{split}"
        self._frames = [frame for frames in videos.values() for frame in frames]
        self._annotations = annotations
        self.clips: dict[str, range] = {}
        start = 0
        for video, frames in videos.items():
            self.clips[video] = range(start, start + len(frames))
            start += len(frames)

    @cached_property
    def fingerprint(self) -> str:
        names = "\0".join(self._key(frame) for frame in self._frames)
        return hashlib.blake2b(names.encode(), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        frame = self._frames[index]
        image = decode(frame, self._key(frame))
        file = _mask_of(self._annotations, frame)
        mask = white_as_object(read_mask(file), self._values(frame.parent.name))
        if mask.shape != image.shape[1:]:
            raise UserError(
                f"the mask {file} has {mask.shape[1]}×{mask.shape[0]} pixels, but its frame {frame} has "
                f"{image.shape[2]}×{image.shape[1]}; both must have the same size"
            )
        return Sample(image, self._key(frame), instances=mask)

    def label(self, index: int) -> int | None:
        return None

    def keys(self) -> list[str]:
        return [self._key(frame) for frame in self._frames]

    def files(self) -> Iterable[Path]:
        return (file for frame in self._frames for file in (frame, _mask_of(self._annotations, frame)))

    def _values(self, video: str) -> set[int]:
        """The values in the first mask of a video."""
        return _values(_mask_of(self._annotations, self._frames[self.clips[video].start]))

    def _key(self, frame: Path) -> str:
        return f"{frame.parent.name}/{frame.stem}"


def open_davis(root: Path, split: str | None = None) -> Davis:
    """The videos of a split; without ImageSets, all of them."""
    images, annotations = _resolution(root, "JPEGImages"), _resolution(root, "Annotations")
    names, chosen = _names(root, split, images)
    videos = {name: list_frames(images / name) for name in names}
    for name, frames in videos.items():
        missing = [frame for frame in frames if not _mask_of(annotations, frame).is_file()]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(frames)} frames of {name} have no mask, such as "
                f"{_mask_of(annotations, missing[0])}; every frame needs a mask to be compared with"
            )
    return Davis(root, chosen, videos, annotations)


def list_frames(folder: Path) -> list[Path]:
    """The images of a folder, sorted by name."""
    if not folder.is_dir():
        raise UserError(f"no such folder of images: {folder}")
    frames = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not frames:
        raise UserError(f"no images in {folder}; put the frames of a video there, ordered by name")
    return frames


@lru_cache(maxsize=64)
def _values(mask: Path) -> set[int]:
    return set(torch.unique(read_mask(mask)).tolist())


def _mask_of(annotations: Path, frame: Path) -> Path:
    return annotations / frame.parent.name / f"{frame.stem}.png"


def _resolution(root: Path, kind: str) -> Path:
    """The folder of a resolution: 480p, or the only one there is."""
    folder = root / kind
    found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if _RESOLUTION in found or len(found) == 1:
        return folder / (_RESOLUTION if _RESOLUTION in found else found[0])
    raise UserError(
        f"{root} is not in DAVIS layout: {kind}/{_RESOLUTION} is missing"
        + (f" (there are {', '.join(found)})" if found else "")
    )


def _names(root: Path, split: str | None, images: Path) -> tuple[list[str], str]:
    lists = {
        path.stem: path for path in sorted((root / "ImageSets").glob("*/*.txt"))
    }  # later years override earlier ones
    if not lists and split is None:
        return sorted(path.name for path in images.iterdir() if path.is_dir()), "all"
    chosen = split or "val"
    if chosen not in lists:
        raise UnknownSplit(f"{root} has no video split {chosen!r}; it has {', '.join(lists) or 'no ImageSets'}")
    names = read_text(lists[chosen]).split()
    missing = [name for name in names if not (images / name).is_dir()]
    if missing or not names:
        raise UserError(f"{lists[chosen]} names {', '.join(missing) or 'no videos'}, which {images} does not have")
    return names, chosen
