"""Baseline encoders: raw pixels, and an untrained network of the same architecture."""

from __future__ import annotations

import torch

from asterism.nn.backbone import rebuild_backbone
from asterism.nn.concepts import ConceptEncoder, rebuild_reconstruction
from asterism.nn.encoder import Encoder
from asterism.nn.localization import Localization
from asterism.nn.pixel_baseline import pixel_encoder, pixel_patches
from asterism.nn.reconstruction import CodeReconstruction


def untrained(encoder: Encoder, seed: int = 0) -> Encoder:
    """A network of the same architecture with fresh weights; the frozen tokenizer of a concept model is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = _fresh(encoder)
    return fresh.to(next(encoder.parameters()).device).eval()


def whole_image_baselines(encoder: Encoder) -> dict[str, Encoder]:
    return _on_device_of(encoder, pixel_encoder())


def patch_baselines(encoder: Encoder) -> dict[str, Encoder]:
    """For protocols that use patches: raw pixels in patches of the encoder's size."""
    return _on_device_of(encoder, pixel_patches(encoder.image_size, encoder.patch_size))


def concept_baselines(encoder: Encoder) -> dict[str, Encoder]:
    """For protocols that use concepts or a decoder, which pixels do not have."""
    return {"untrained": untrained(encoder)} if _has_weights(encoder) else {}


def _on_device_of(encoder: Encoder, pixels: Encoder) -> dict[str, Encoder]:
    if not _has_weights(encoder):
        return {}
    return {"untrained": untrained(encoder), "pixels": pixels.to(next(encoder.parameters()).device).eval()}


def _has_weights(encoder: Encoder) -> bool:
    """Raw pixels have no weights, so they have no untrained version."""
    return any(weight.numel() for weight in encoder.parameters())


def _fresh(encoder: Encoder) -> Encoder:
    backbone = rebuild_backbone(encoder.backbone.architecture)
    pixels = (encoder.mean, encoder.std, encoder.image_size)
    if not isinstance(encoder, ConceptEncoder):
        return Encoder(backbone, *pixels)
    where = encoder.localization
    localization = None if where is None else Localization(backbone.dim, where.temperature)
    own = encoder.reconstruction
    reconstruction = None if own is None else rebuild_reconstruction(own.describe())
    if isinstance(own, CodeReconstruction) and isinstance(reconstruction, CodeReconstruction):
        reconstruction.tokenizer = own.tokenizer
    return ConceptEncoder(backbone, localization, reconstruction, *pixels)
