"""Training on a part of the labels: the semi-supervised variants of the protocols on whole images.

A share (usually 0.01 or 0.1) is drawn from every class. The draw depends only on labels and seed, so that every encoder
is trained on the same images. Published lists are text files with one file name per line; a name may omit folders and
extension, as long as it identifies one image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pydantic import model_validator

from asterism.data import Source, Subset
from asterism.data.parts import class_balanced, labels_of
from asterism.errors import UserError
from asterism.evals.base import ProtocolConfig
from asterism.images.decode import SUFFIXES
from asterism.inputs import read_text, user_path
from asterism.ranges import PositiveShare


class FewLabelsConfig(ProtocolConfig):
    """Which training images to use."""

    label_share: PositiveShare = 1.0  # class-balanced share of the training images
    label_list: str | None = None  # instead of a share: a text file with the names of the images

    @model_validator(mode="after")
    def _one_of_both(self) -> FewLabelsConfig:
        if self.label_list is not None and self.label_share != 1:
            raise ValueError("give label_share or label_list, not both")
        return self


def labelled_part(source: Source, config: FewLabelsConfig) -> Source:
    """The training images selected by the settings."""
    if config.label_list is not None:
        return Subset(source, listed_places(user_path(config.label_list), source))
    if config.label_share == 1:
        return source
    return Subset(source, class_balanced(labels_of(source), config.label_share, config.seed))


def listed_places(file: Path, source: Source) -> list[int]:
    """Positions of the images that a list names, ascending."""
    names = [line.strip() for line in read_text(file).splitlines() if line.strip()]
    if not names:
        raise UserError(f"the list of images {file} is empty; it needs one file name per line")
    places = _places(source.keys())
    found = [places.get(_stem(name), []) for name in names]
    missing = [name for name, own in zip(names, found, strict=True) if not own]
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(names)} names in {file} are not among the images of {source.name}, such as "
            f"{missing[0]!r}; give the list that belongs to this data"
        )
    several = [name for name, own in zip(names, found, strict=True) if len(own) > 1]
    if several:
        raise UserError(f"{several[0]!r} in {file} matches several images of {source.name}; add their folders")
    return sorted({own[0] for own in found})


def _places(keys: Sequence[str]) -> dict[str, list[int]]:
    """Positions by every valid name of an image: its path without extension, with and without leading folders."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        parts = _stem(key).split("/")
        for first in range(len(parts)):
            places.setdefault("/".join(parts[first:]), []).append(place)
    return places


def _stem(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_suffix("")) if path.suffix.lower() in SUFFIXES else str(path)
