"""Reconstruction: how much of an image a number of tokens preserves.

What is measured: the decoder of a model with concepts; a tokenizer's codes (`tokenizer`); or a decoder that is trained
here on the frozen patch tokens of any encoder (`decoder`), all of them or a few.

The protocol of STELLAR: images are resized (bicubic, antialiased; 256 for a crop of 224) and centre-cropped; the
decoder's output is clamped and rounded to 8 bits. PSNR in dB, SSIM and LPIPS are means over images. The Fréchet
distance between originals and reconstructions (rFID if the features are the original Inception's) is computed in
float64; the result names the feature network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional as F

from asterism.data.parts import DataChoice, Parts, open_unlabelled, open_untrained
from asterism.errors import UserError
from asterism.evals.base import Evaluation, ProtocolConfig
from asterism.evals.baselines import concept_baselines
from asterism.evals.pixel_probe import PixelProbe, PixelProbeConfig
from asterism.evals.settings import CroppedConfig, first_images
from asterism.features.encoding import helpers
from asterism.images.centre_crop import usual_resize
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.encoder import Encoder
from asterism.nn.feature_networks import (
    FeatureNetwork,
    Inception,
    NetworkName,
    RandomConvolutions,
    choose_network,
    feature_network,
)
from asterism.nn.perceptual import SMALLEST_SIDE as SMALLEST_LPIPS_SIDE
from asterism.nn.perceptual import Lpips, PerceptualName, missing_for, perceptual_distance
from asterism.nn.tokenizers.saved import load_tokenizer
from asterism.ops.frechet import Moments, frechet_distance
from asterism.ops.image_quality import SMALLEST_SIDE, psnr, ssim
from asterism.ranges import Count, CountFromTwo, Pixels

_MOST_DB = 100.0  # of an exact copy, whose ratio is infinite; 8-bit images that differ stay below 100
_NETWORKS: tuple[type[FeatureNetwork], ...] = (Inception, RandomConvolutions)


class ReconstructionConfig(CroppedConfig):
    """Constants of the protocol."""

    network: NetworkName = "auto"  # features of the Fréchet distance; auto: Inception if available
    perceptual: PerceptualName = "auto"  # network of LPIPS; auto: AlexNet if its weights are available
    tokenizer: str | None = None  # a `vq` run or a tokenizer's file: measure its codes instead of the model
    decoder: PixelProbeConfig | None = None  # train a decoder on the encoder's frozen patch tokens
    side: Pixels | None = None  # pixels per side of the crop; None: the encoder's image size
    images: CountFromTwo | None = None  # number of images, from the first; None: all
    batch_size: Count = 64  # images at a time; does not change the result

    @model_validator(mode="after")
    def _one_decoder(self) -> ReconstructionConfig:
        if self.tokenizer is not None and self.decoder is not None:
            raise ValueError("give tokenizer or decoder, not both: a tokenizer has its own decoder")
        return self

    def pixels(self, encoder: Encoder) -> dict[str, int]:
        if self.side is None:
            return super().pixels(encoder)
        resize = usual_resize(self.side) if self.resize is None else round(self.resize * self.side)
        return {"resize": resize, "crop": self.side}


@dataclass(frozen=True)
class Reconstructor:
    """Images in [0, 1] from 8-bit images, through so many tokens."""

    reconstruct: Callable[[UInt8[Tensor, "b 3 s s"]], Float[Tensor, "b 3 h w"]]
    tokens: int


class Reconstruction(Evaluation):
    """PSNR, SSIM, LPIPS and Fréchet distance between images and their reconstructions."""

    Config = ReconstructionConfig
    config: ReconstructionConfig

    @classmethod
    def open_parts(cls, config: ProtocolConfig, choice: DataChoice) -> Parts:
        """The images need no labels. Unless a decoder is trained, both parts are the images to reconstruct."""
        assert isinstance(config, ReconstructionConfig)
        if config.decoder is not None:
            return open_unlabelled(choice, config.holdout, config.seed)
        return open_untrained(choice)

    @classmethod
    def value_names(cls, config: ProtocolConfig) -> list[str]:
        distances = [*(f"frechet_{network.name}" for network in _NETWORKS), "lpips_alex", "lpips_vgg"]
        return ["psnr", "ssim", *distances, "tokens", "images"]

    def measure(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        device = next(encoder.parameters()).device
        reconstructor = self._reconstructor(encoder)
        network = feature_network(self.config.network).to(device)
        perceptual = self._perceptual(encoder)
        noise, structure, distance, seen = 0.0, 0.0, 0.0, 0
        before, after = Moments(), Moments()
        source, pixels = self.parts.test, self.config.pixels(encoder)
        sizes = (pixels["crop"], pixels["resize"])
        for images in first_images("reconstruction", source, *sizes, self.config.images, self.config):
            originals, made = _pair(reconstructor, images)
            noise += float(psnr(made.float() / 255, originals.float() / 255).clamp(max=_MOST_DB).sum())
            structure += float(ssim(made, originals).sum())
            if perceptual is not None:
                distance += float(perceptual.to(device)(originals, made).sum())
            for moments, pictures in ((before, originals), (after, made)):
                moments.add(_features(network, pictures))
            seen += len(images)
        if seen < 2:
            raise UserError(f"{source.name} has {seen} readable images; a Fréchet distance needs at least two")
        yield "psnr", noise / seen
        yield "ssim", structure / seen
        if perceptual is not None:
            yield perceptual.name, distance / seen
        yield f"frechet_{network.name}", frechet_distance(before, after)
        yield "tokens", float(reconstructor.tokens)
        yield "images", float(seen)

    def baselines(self, encoder: Encoder) -> dict[str, Encoder]:
        return {} if self.config.tokenizer is not None else concept_baselines(encoder)

    def constants(self, encoder: Encoder) -> dict[str, Any]:
        network = choose_network(self.config.network)
        names = {"network": network.name, "network_features": network.dim}
        return super().constants(encoder) | self.config.pixels(encoder) | names

    def notes(self) -> list[str]:
        network = choose_network(self.config.network)
        images = min(len(self.parts.test), self.config.images or len(self.parts.test))
        few = f"{images} images are too few for {network.dim} features: the Fréchet distance is overestimated"
        notes = super().notes() + ([few] if images <= network.dim else [])
        if self.config.perceptual == "auto" and (missing := missing_for("alex")) is not None:
            notes.append(f"no LPIPS: {missing}")
        return notes

    def _reconstructor(self, encoder: Encoder) -> Reconstructor:
        side = self.config.pixels(encoder)["crop"]
        if self.config.tokenizer is not None:
            return _codes(self.config.tokenizer, side, next(encoder.parameters()).device)
        if self.config.decoder is not None:
            probe = PixelProbe(encoder, self.config.decoder, side, self.config.seed)
            train = self.parts.train
            workers = helpers(self.config.workers, len(train))
            probe.fit(train, self.config.pixels(encoder)["resize"], workers, self.config.seed)
            return Reconstructor(probe.reconstruct, probe.tokens)
        return _concepts(encoder)

    def _perceptual(self, encoder: Encoder) -> Lpips | None:
        name, side = self.config.perceptual, self.config.pixels(encoder)["crop"]
        if name in ("alex", "vgg") and side < SMALLEST_LPIPS_SIDE:
            raise UserError(
                f"reconstruction.perceptual = {name}, but LPIPS needs images of at least {SMALLEST_LPIPS_SIDE} pixels, "
                f"and these have {side}; choose auto or none, or a larger reconstruction.side"
            )
        return None if side < SMALLEST_LPIPS_SIDE else perceptual_distance(name)


def _concepts(encoder: Encoder) -> Reconstructor:
    """The model's own decoder."""
    if not isinstance(encoder, ConceptEncoder) or encoder.reconstruction is None:
        reason = "came without a decoder" if isinstance(encoder, ConceptEncoder) else "has no concepts"
        raise UserError(
            f"this encoder {reason}; evaluate a run of stellar that trained a decoder, train one on the frozen patch "
            "tokens of this encoder (reconstruction.decoder={}), or measure a tokenizer (reconstruction.tokenizer=RUN)"
        )

    def reconstruct(images: UInt8[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 h w"]:
        features = encoder.encode(images)
        assert features.sparse is not None
        assert features.where is not None
        return encoder.reconstruct(features.sparse, features.where).float()

    return Reconstructor(reconstruct, encoder.backbone.registers)


def _codes(source: str, side: int, device: torch.device) -> Reconstructor:
    """A tokenizer: images to codes and back."""
    tokenizer = load_tokenizer(source).to(device)

    @torch.no_grad()
    def reconstruct(images: UInt8[Tensor, "b 3 s s"]) -> Float[Tensor, "b 3 h w"]:
        return tokenizer.decode(tokenizer.encode(images.to(device).float() / 255)).float()

    return Reconstructor(reconstruct, (side // tokenizer.factor) ** 2)


def _pair(
    reconstructor: Reconstructor, images: UInt8[Tensor, "b 3 s s"]
) -> tuple[UInt8[Tensor, "b 3 h w"], UInt8[Tensor, "b 3 h w"]]:
    """Originals and reconstructions at the decoder's output size, in 8 bits."""
    made = _in_8_bits(reconstructor.reconstruct(images))
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
