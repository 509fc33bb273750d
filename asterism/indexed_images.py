"""The images behind a file that `asterism embed` wrote, and whether it was made by the model at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.data import BadImage, Sample, Source, open_source
from asterism.errors import UserError
from asterism.evals.cache import encoder_fingerprint
from asterism.nn.encoder import Encoder


class IndexedImages:
    """Images by their row in an index. Rows follow the source, but images that could not be read have none."""

    def __init__(self, source: Source, keys: Sequence[str]) -> None:
        self._source = source
        self._keys = keys
        self._left_out = len(source) - len(keys)

    def __getitem__(self, row: int) -> Sample:
        for place in range(row, row + self._left_out + 1):
            try:
                sample = self._source[place]
            except BadImage:
                continue
            if sample.key == self._keys[row]:
                return sample
        raise UserError(f"{self._keys[row]} cannot be read any more from {self._source.name}")


def open_indexed_images(path: Path, facts: Mapping[str, Any], keys: Sequence[str], data: str | None) -> IndexedImages:
    """The images of the index at `path`: at `data`, or where they were when it was made."""
    place = data or facts.get("path")
    if place is None:
        raise UserError(f"{path} does not tell where its images are; name them by --data")
    source = open_source(place, facts.get("split"))
    if source.fingerprint != facts.get("fingerprint"):
        raise UserError(
            f"the images of {place} are not those that {path} was made of; name those by --data, or embed these again"
        )
    return IndexedImages(source, keys)


def check_encoder(path: Path, facts: Mapping[str, Any], encoder: Encoder) -> None:
    """Refuse an index of another model: vectors of two models may have one width, but never one meaning."""
    if facts.get("encoder") != encoder_fingerprint(encoder):
        step = "" if facts.get("step") is None else f" at step {facts['step']}"
        raise UserError(
            f"{path} was made by another model ({facts.get('model')}{step}), so its vectors mean something else; embed "
            "the images with this model, or name that one"
        )
