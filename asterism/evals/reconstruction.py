"""Reconstruction from concepts: how much of an image a handful of tokens and their locations preserve.

The protocol of STELLAR: images are resized (bicubic, antialiased; 256 for a crop of 224) and centre-cropped; the
decoder's output is clamped and rounded to 8 bits. PSNR in dB and SSIM are means over images. The Fréchet distance
between originals and reconstructions (rFID if the features are Inception's) is computed in float64; the result names
the feature network. Needs an encoder with concepts and a decoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from asterism.data import evaluation_batches, open_source
from asterism.data.evaluation.labelled import DataChoice, Parts
from asterism.data.sources.splits import UnknownSplit
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.settings.cropped import CroppedConfig
from asterism.features.extract import helpers
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.feature_networks import (
    FeatureNetwork,
    Inception,
    NetworkName,
    RandomConvolutions,
    feature_network,
)
from asterism.ops.frechet import Moments, frechet_distance
from asterism.ops.psnr import psnr
from asterism.ops.structural_similarity import SMALLEST_SIDE, ssim
from asterism.ranges import Count, CountFromTwo
from asterism.viz.bar import Bar

_MOST_DB = 100.0  # of an exact copy, whose ratio is infinite; 8-bit images that differ stay below 100


class ReconstructionConfig(CroppedConfig):
    """Constants of the protocol."""

    network: NetworkName = "auto"  # features of the Fréchet distance; auto: Inception if its weights are available
    images: CountFromTwo | None = None  # number of images, from the first; None: all
    batch_size: Count = 64  # images at a time; does not change the result


class Reconstruction(Evaluation):
    """PSNR, SSIM and Fréchet distance between images and their reconstructions."""

    Config = ReconstructionConfig
    config: ReconstructionConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        """Nothing is trained, so both parts are the images to reconstruct; they need no labels."""
        try:
            source = open_source(choice.path, choice.test_split or "test")
        except UnknownSplit:
            if choice.test_split is not None:
                raise
            source = open_source(choice.path)
        return Parts(source, source, ("nothing is trained: training and test images are the same",))

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        return ["psnr", "ssim", *(f"frechet_{network.name}" for network in (Inception, RandomConvolutions)), "images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        concepts = _with_decoder(encoder)
        network = feature_network(self.config.network).to(next(encoder.parameters()).device)
        noise, structure, seen = 0.0, 0.0, 0
        before, after = Moments(), Moments()
        source = self.parts.test
        total = min(len(source), self.config.images or len(source))
        batches = evaluation_batches(
            source,
            encoder.image_size,
            resize=self.config.pixels(encoder)["resize"],
            batch_size=self.config.batch_size,
            workers=helpers(self.config.workers, len(source)),
        )
        with Bar("reconstruction", total) as bar:
            for batch in batches:
                images = batch.images[: total - seen]
                if not len(images):
                    break
                originals, made = _pair(concepts, images)
                noise += float(psnr(made.float() / 255, originals.float() / 255).clamp(max=_MOST_DB).sum())
                structure += float(ssim(made, originals).sum())
                for moments, pictures in ((before, originals), (after, made)):
                    moments.add(_features(network, pictures))
                seen += len(images)
                bar.advance(len(images) + len(batch.bad))
        if seen < 2:
            raise UserError(f"{source.name} has {seen} readable images; a Fréchet distance needs at least two")
        yield "psnr", noise / seen
        yield "ssim", structure / seen
        yield f"frechet_{network.name}", frechet_distance(before, after)
        yield "images", float(seen)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return concept_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        network = feature_network(self.config.network)
        names = {"network": network.name, "network_features": network.dim}
        return super().constants(encoder) | self.config.pixels(encoder) | names

    def notes(self) -> list[str]:
        network = feature_network(self.config.network)
        images = min(len(self.parts.test), self.config.images or len(self.parts.test))
        few = f"{images} images are too few for {network.dim} features: the Fréchet distance is overestimated"
        return super().notes() + ([few] if images <= network.dim else [])


def _with_decoder(encoder: Encoder) -> ConceptEncoder:
    if isinstance(encoder, ConceptEncoder) and encoder.reconstruction is not None:
        return encoder
    reason = "came without a decoder" if isinstance(encoder, ConceptEncoder) else "has no concepts"
    raise UserError(
        f"this encoder {reason}, so it cannot reconstruct; evaluate a run of stellar that trained a decoder"
    )


def _pair(
    encoder: ConceptEncoder, images: UInt8[Tensor, "b 3 s s"]
) -> tuple[UInt8[Tensor, "b 3 h w"], UInt8[Tensor, "b 3 h w"]]:
    """Originals and reconstructions at the decoder's output size, in 8 bits."""
    features = encoder.encode(images)
    assert features.sparse is not None
    assert features.where is not None
    made = _in_8_bits(encoder.reconstruct(features.sparse, features.where).float())
    if min(made.shape[2:]) < SMALLEST_SIDE:
        raise UserError(f"reconstructions of {made.shape[3]}×{made.shape[2]} pixels are too small for SSIM's window")
    originals = images.to(made.device)
    if made.shape != originals.shape:
        originals = F.interpolate(originals, made.shape[2:], mode="bicubic", antialias=True)
    return originals, made


def _in_8_bits(images: Float[Tensor, "b 3 h w"]) -> UInt8[Tensor, "b 3 h w"]:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


@torch.no_grad()
def _features(network: FeatureNetwork, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
    return network(images)
