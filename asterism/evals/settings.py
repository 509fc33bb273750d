"""Settings that several protocols share: how images are cropped, which vector stands for one, how neighbours vote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxtyping import UInt8
from pydantic import field_validator, model_validator
from torch import Tensor

from asterism.data import Source, evaluation_batches
from asterism.data.sources.segmented import NearestMultiple, SegmentedBatch, SegmentedSource, segmented_batches
from asterism.evals.base import ProtocolConfig
from asterism.features.encoding import helpers
from asterism.features.extract import Extracted, Feature, extract_pooled
from asterism.images.centre_crop import usual_resize
from asterism.nn.encoder import Encoder
from asterism.nn.few_patches import seeing
from asterism.ranges import AtLeastOne, Count, LongerSide, Several, VoteTemperature
from asterism.viz.bar import Bar


class CroppedConfig(ProtocolConfig):
    """How images are resized and cropped."""

    resize: AtLeastOne | None = None  # shorter side before the centre crop, relative to the crop; None: `usual_resize`

    def pixels(self, encoder: Encoder) -> dict[str, int]:
        """The shorter side after resizing and the side of the centre crop, in pixels."""
        crop = encoder.image_size
        return {"resize": usual_resize(crop) if self.resize is None else round(self.resize * crop), "crop": crop}


class PooledConfig(CroppedConfig):
    """Which vector represents an image."""

    feature: Feature = "cls"  # class token; patches: mean patch; quarters: its four quarters; sparse: mean concept
    tokens: Count | None = None  # the encoder sees only so many patches, the same of every image; None: all

    @model_validator(mode="after")
    def _quarters_need_all_patches(self) -> PooledConfig:
        if self.feature == "quarters" and self.tokens is not None:
            raise ValueError("feature quarters needs every patch; leave out tokens, or choose cls or patches")
        return self


class WholeImagesConfig(ProtocolConfig):
    """Images with masks, at multiples of the patch size."""

    longer_side: LongerSide | None = None  # pixels of the images; None: as they are
    batch_size: Count = 32  # images encoded at a time; does not change the result

    def batches(self, title: str, encoder: Encoder, source: SegmentedSource) -> Iterator[SegmentedBatch]:
        resize, workers = NearestMultiple(encoder.patch_size, self.longer_side), helpers(self.workers, len(source))
        with Bar(title, len(source)) as bar:
            for batch in segmented_batches(source, resize, batch_size=self.batch_size, workers=workers):
                yield batch
                bar.advance(len(batch.images))


def first_images(
    title: str, source: Source, size: int, resize: int, count: int | None, config: ProtocolConfig
) -> Iterator[UInt8[Tensor, "b 3 s s"]]:
    """The readable images of a source in batches, resized and centre-cropped; at most `count` of them."""
    left = min(len(source), count or len(source))
    workers = helpers(config.workers, len(source))
    with Bar(title, left) as bar:
        for batch in evaluation_batches(source, size, resize=resize, batch_size=config.batch_size, workers=workers):
            images = batch.images[:left]
            if not len(images):
                break
            yield images
            left -= len(images)
            bar.advance(len(images) + len(batch.bad))


def pooled_vectors(config: PooledConfig, encoder: Encoder, source: Source) -> Extracted:
    encoder = seeing(encoder, config.tokens)
    return extract_pooled(
        encoder,
        source,
        config.feature,
        resize=config.pixels(encoder)["resize"],
        batch_size=config.batch_size,
        workers=config.workers,
        layer=config.feature,
    )


class VotingConfig(ProtocolConfig):
    """The number of voting neighbours, and the temperature of their weights."""

    k: Several[Count] = (10, 20, 100, 200)  # neighbours that vote; every value is reported
    temperature: VoteTemperature = 0.07  # of the votes; below 0.02 single precision overflows

    @field_validator("k", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    def clipped(self, most: int, limit: str) -> list[str]:
        """A note if more neighbours were requested than there are."""
        too_many = [str(k) for k in self.k if k > most]
        return [f"k = {', '.join(too_many)} was reduced to {limit}"] if too_many else []
