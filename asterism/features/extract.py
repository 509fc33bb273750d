"""Features of every image of a source: read, encoded batch by batch, and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Required, TypedDict, TypeVar, Unpack

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.data import Source, Subset
from asterism.data.crops import CenterCrops, labels_at, without_empty
from asterism.data.loader import Make
from asterism.data.sources.source import stamp
from asterism.errors import UserError
from asterism.features.cache import WORTH_KEEPING, stored
from asterism.features.encoding import Workers, encoded
from asterism.features.rows import Block, Stored
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.types import Features
from asterism.viz.bar import Bar

Feature = Literal["cls", "patches", "quarters", "sparse"]
Batch = TypeVar("Batch")
Chosen = TypeVar("Chosen")


def image_rows(
    encoder: Encoder,
    source: Source,
    make: Make[Batch],
    rows: Callable[[Batch], Mapping[str, list[Tensor]]],
    identity: Mapping[str, Any] | None,
    *,
    batch_size: int,
    workers: Workers = "auto",
) -> Stored:
    """`rows(make(images))`: of every array, the rows of each readable image of a source.

    They are computed once per encoder, data and `identity`, which names everything else that they depend on; None if
    they should not be kept. Must be called by all processes of a run, which share the work.
    """

    def blocks(first: int, end: int) -> Iterator[Block]:
        part = source if (first, end) == (0, len(source)) else Subset(source, range(first, end))
        found = encoded(
            encoder, part, make, lambda batch: Block([], rows(batch)), batch_size=batch_size, workers=workers
        )
        with Bar(source.name, end, first) as bar:
            for loaded in found:
                block = Block([], {}) if loaded.made is None else loaded.made
                labels = labels_at(part, loaded.places)
                yield replace(block, keys=loaded.keys, labels=labels, unreadable=loaded.bad)
                bar.advance(len(loaded.keys) + len(loaded.bad))

    whole = None if identity is None else {**origin(encoder, source), **identity}
    found = stored(whole, len(source), blocks, batch_size=batch_size)
    if not found.keys:
        raise nothing_readable(source, found.unreadable)
    return found


@dataclass(frozen=True)
class Encoded(Generic[Chosen]):
    """What was chosen from the features of a batch of readable images, in the order of the source, and the images that
    could not be read."""

    features: Chosen
    keys: list[str]
    labels: Int[Tensor, " b"] | None
    unreadable: list[BadImage]


@dataclass(frozen=True)
class Extracted:
    """One vector per readable image, on the CPU; may be mapped from a file."""

    features: Float[Tensor, "n d"]
    labels: Int[Tensor, " n"]
    keys: list[str]
    unreadable: list[BadImage]


class Extraction(TypedDict, total=False):
    """How images are preprocessed and encoded, and how their vectors are stored."""

    resize: Required[int]  # shorter side before the centre crop, in pixels
    batch_size: Required[int]
    workers: Workers
    dtype: torch.dtype  # float16 halves the memory that millions of vectors need
    layer: str | None  # name under which the vectors are cached on disk for every protocol; None: not cached


def extract_pooled(encoder: Encoder, source: Source, kind: Feature, **how: Unpack[Extraction]) -> Extracted:
    """One vector for every image of a labelled source, pooled from its features."""
    if kind == "cls":
        return extract(encoder, source, encoder.encode_cls, **how)
    return extract(encoder, source, lambda images: pooled(encoder.encode(images), kind), **how)


def extract(
    encoder: Encoder,
    source: Source,
    vectors: Callable[[Tensor], Tensor],
    *,
    resize: int,
    batch_size: int,
    workers: Workers = "auto",
    dtype: torch.dtype = torch.float32,
    layer: str | None = None,
) -> Extracted:
    """One vector for every image of a labelled source, computed from images uint8 [b, 3, s, s]; settings as in
    `Extraction`."""

    def rows(images: UInt8[Tensor, "b 3 s s"]) -> dict[str, list[Tensor]]:
        return {"vectors": list(vectors(images).to("cpu", dtype)[:, None])}

    crops = CenterCrops(encoder.image_size, resize)
    transform = {"resize": resize, "crop": encoder.image_size}
    identity = {"transform": transform, "layer": layer, "dtype": str(dtype)} if layer else None
    found = image_rows(encoder, source, crops, rows, identity, batch_size=batch_size, workers=workers)
    assert found.labels is not None
    return Extracted(found.arrays["vectors"], found.labels, found.keys, found.unreadable)


def origin(encoder: Encoder, source: Source) -> dict[str, str]:
    """The part of an identity that specifies the encoder and the images."""
    if len(source) < WORTH_KEEPING:
        return {}  # nothing is kept, so no identity is needed
    return {"encoder": encoder_fingerprint(encoder), "data": stamp(source)}


def stream(
    encoder: Encoder,
    source: Source,
    choose: Callable[[Features], Chosen],
    *,
    resize: int,
    batch_size: int,
    workers: Workers = "auto",
) -> Iterator[Encoded[Chosen]]:
    """What `choose` takes from the features of every batch, in the order of the source.

    Images are resized so that their shorter side is `resize`, then centre-cropped to the encoder's image size.
    """

    crops = CenterCrops(encoder.image_size, resize)
    found = encoded(
        encoder, source, crops, lambda images: choose(encoder.encode(images)), batch_size=batch_size, workers=workers
    )
    for loaded in without_empty(found):
        if loaded.made is None:
            raise nothing_readable(source, loaded.bad)
        labels = labels_at(source, loaded.places)
        yield Encoded(loaded.made, loaded.keys, None if labels is None else torch.tensor(labels), loaded.bad)


def count_unreadable(*parts: Extracted | Stored) -> Iterator[tuple[str, float]]:
    """The number of images left out, as a value of the result; nothing if there are none."""
    if count := sum(len(part.unreadable) for part in parts):
        yield "unreadable_images", float(count)


def nothing_readable(source: Source, bad: Sequence[BadImage]) -> UserError:
    return UserError(f"none of the {len(source)} images of {source.name} can be read; the first: {bad[0]}")


def pooled(features: Features, kind: Feature) -> Float[Tensor, "b d"]:
    """One vector per image: the class token, the mean patch, mean patches of its quarters, or the mean concept."""
    if kind == "cls":
        return features.cls
    if kind == "patches":
        return features.patches.mean(1)
    if kind == "quarters":
        maps = features.patches.mT.reshape(*features.patches.mT.shape[:2], *features.grid)
        return F.adaptive_avg_pool2d(maps, 2).flatten(1)
    if features.sparse is None:
        raise UserError(
            "feature 'sparse' was requested, but this encoder has no concept tokens; choose cls, patches or quarters"
        )
    return features.sparse.mean(1)
