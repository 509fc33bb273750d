"""Features of a whole source, batch by batch: memory holds one batch and what the caller keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, Required, TypedDict, TypeVar, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.data import EvaluationBatch, Source
from asterism.data.evaluation.batches import CenterCrops
from asterism.data.sources.source import stamp
from asterism.errors import UserError
from asterism.features.cache import WORTH_KEEPING, stored
from asterism.features.encoding import Workers, cropped_blocks, encoded
from asterism.features.rows import Block, Stored
from asterism.images.bad_image import BadImage
from asterism.nn.encoder import Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.types import Features

Feature = Literal["cls", "patches", "quarters", "sparse"]
Chosen = TypeVar("Chosen")


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

    def block(batch: EvaluationBatch) -> Block:
        assert batch.labels is not None
        rows = list(vectors(batch.images).to("cpu", dtype)[:, None]) if batch.keys else []
        return Block(batch.keys, {"vectors": rows}, batch.labels.tolist(), batch.bad)

    def blocks(first: int, end: int) -> Iterator[Block]:
        images = range(first, end)
        return cropped_blocks(encoder, source, images, resize, block, batch_size=batch_size, workers=workers)

    crop = {"resize": resize, "crop": encoder.image_size}
    identity = layer and {**origin(encoder, source), "transform": crop, "layer": layer, "dtype": str(dtype)}
    found = stored(identity or None, len(source), blocks, batch_size=batch_size)
    assert found.labels is not None
    if not found.keys:
        raise nothing_readable(source, found.unreadable)
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

    def encode(batch: EvaluationBatch) -> Encoded[Chosen] | list[BadImage]:
        if not batch.keys:
            return batch.bad
        return Encoded(choose(encoder.encode(batch.images)), batch.keys, batch.labels, batch.bad)

    crops = CenterCrops(source, encoder.image_size, resize)
    last: Encoded[Chosen] | None = None
    bad: list[BadImage] = []  # of batches without a readable image, after the last one
    for found in encoded(encoder, source, crops, encode, batch_size=batch_size, workers=workers):
        if isinstance(found, list):
            bad += found
        else:
            if last is not None:
                yield last
            last, bad = replace(found, unreadable=bad + found.unreadable), []
    if last is not None:
        yield replace(last, unreadable=last.unreadable + bad)
    elif bad:
        raise nothing_readable(source, bad)


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
