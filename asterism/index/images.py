"""The images behind an index."""

from __future__ import annotations

from collections.abc import Sequence

from asterism.data import Sample, Source, open_source
from asterism.errors import UserError
from asterism.images.bad_image import BadImage
from asterism.index.read import Index


class IndexedImages:
    """Images by their row in an index. Rows are in the order of the source; unreadable images have none."""

    def __init__(self, source: Source, keys: Sequence[str]) -> None:
        self.source = source
        self._keys = keys
        self._left_out = len(source) - len(keys)

    def __getitem__(self, row: int) -> Sample:
        for place in range(row, row + self._left_out + 1):
            try:
                sample = self.source[place]
            except BadImage:
                continue
            if sample.key == self._keys[row]:
                return sample
        raise UserError(f"{self._keys[row]} can no longer be read from {self.source.name}")


def open_images(index: Index, data: str | None = None) -> IndexedImages:
    """The images of an index: at `data`, or by default where they were when the index was made."""
    place = data or index.facts.get("path")
    if place is None:
        raise UserError(f"{index.path} does not record where its images are; name them with --data")
    source = open_source(place, index.facts.get("split"))
    if source.fingerprint != index.facts.get("fingerprint"):
        raise UserError(
            f"the images of {place} are not those that {index.path} was made from; name those with --data, or embed "
            "these images again"
        )
    return IndexedImages(source, index.keys)
