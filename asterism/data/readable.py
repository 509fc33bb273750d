"""Images for training: an unreadable one is replaced by the next readable one, and remembered."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from asterism.data.sources.source import Sample, Source
from asterism.errors import UserError
from asterism.images.bad_image import BadImage

_LONGEST_RUN = 1000  # unreadable images in a row after which the data set itself must be at fault


@runtime_checkable
class _Images(Protocol):
    def __getitem__(self, index: int) -> Sample: ...


class ReadableImages:
    """The images of a source. images: reads them, by default the source itself."""

    def __init__(self, source: Source, images: _Images | None = None) -> None:
        self._source = source
        self._images = source if images is None else images
        self._bad: dict[int, BadImage] = {}

    def find(self, drawn: int, bad: list[BadImage]) -> tuple[int, Sample]:
        """The position of the first readable image from `drawn` on, and the image; append bad ones to `bad`."""
        for step in range(min(len(self._source), _LONGEST_RUN)):
            place = (drawn + step) % len(self._source)
            try:
                if place not in self._bad:
                    return place, self._images[place]
            except BadImage as error:
                self._bad[place] = error
            bad.append(self._bad[place])
        raise UserError(
            f"{len(bad)} images in a row of {self._source.name} cannot be read, the first: {bad[0]}. "
            "Check that the data is complete and accessible"
        )
