"""Images with sentences about them: what alignment with text trains on, and what its protocols measure with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from asterism.data.sources.derived import Subset, Wrapped
from asterism.data.sources.source import Source
from asterism.errors import UserError


@dataclass(frozen=True)
class Negative:
    """A sentence that is almost, but not, true of an image."""

    text: str
    caption: str  # the true sentence that it was made from
    kind: str  # what was changed: relation, order, colour …


@dataclass(frozen=True)
class Texts:
    """All that is written about one image."""

    captions: tuple[str, ...]  # at least one, none empty
    negatives: tuple[Negative, ...] = ()
    pair: str | None = None  # two images with the same name here differ in one respect (Winoground, MMVP)
    category: str | None = None  # of the pair: in which respect


class Captioned(Wrapped):
    """The images of a source, each with its texts."""

    def __init__(self, source: Source, texts: Sequence[Texts]) -> None:
        super().__init__(source)
        assert len(texts) == len(source)
        self.texts = texts

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.source.fingerprint.encode(), digest_size=8)
        for texts in self.texts:
            digest.update(repr(texts).encode())
        return digest.hexdigest()

    def captions(self, index: int) -> tuple[str, ...]:
        return self.texts[index].captions

    def part(self, places: Sequence[int]) -> Captioned:
        """Some of the images, in the given order."""
        return Captioned(Subset(self.source, places), [self.texts[place] for place in places])


@dataclass(frozen=True)
class ImagePair:
    """Two images with one sentence each; every sentence is true of its own image only."""

    images: tuple[int, int]  # places in the source
    captions: tuple[str, str]
    category: str


def pairs_of(source: Captioned) -> list[ImagePair]:
    """The pairs of a source, in the order of their first images."""
    members: dict[str, list[int]] = {}
    for place, texts in enumerate(source.texts):
        if texts.pair is not None:
            members.setdefault(texts.pair, []).append(place)
    if not members:
        raise UserError(
            f"{source.name} has no pairs of images, which this protocol compares; give two lines of a JSONL file the "
            'same "pair", or the folder of the benchmark itself'
        )
    for name, places in members.items():
        if len(places) != 2:
            raise UserError(f"{source.name}: the pair {name!r} has {len(places)} images; a pair has two")
    return [
        ImagePair(
            (a, b), (source.texts[a].captions[0], source.texts[b].captions[0]), source.texts[a].category or "pairs"
        )
        for a, b in members.values()
    ]
