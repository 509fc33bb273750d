"""Centre-cropped images and one vector for each, shared by the protocols on whole images."""

from __future__ import annotations

from pydantic import model_validator

from asterism.data import Source
from asterism.evals.base import ProtocolConfig
from asterism.features.extract import Extracted, Feature, extract_pooled
from asterism.images.centre_crop import usual_resize
from asterism.nn.encoder import Encoder
from asterism.nn.few_patches import seeing
from asterism.ranges import AtLeastOne, Count


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
