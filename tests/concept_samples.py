"""A small encoder that knows concepts, as an official checkpoint gives it, and pictures for it."""

from pathlib import Path

import torch

from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.concepts import ConceptEncoder
from asterism.nn.localization import Localization
from asterism.nn.reconstruction import ConceptDecoder, PixelReconstruction
from tests.evals.samples import write_colours

TOKENS = 3


def concept_encoder(dim: int = 16, decoder: bool = True, seed: int = 0) -> ConceptEncoder:
    """Three concepts on a grid of 4 × 4 patches, untrained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = BackboneConfig(
            name="vit_tiny_patch16_224", image_size=16, patch_size=4, dim=dim, depth=1, heads=2, registers=TOKENS
        )
        reconstruction = PixelReconstruction(ConceptDecoder(dim, 16, 1, 2), 4) if decoder else None
        return ConceptEncoder(build_backbone(config), Localization(dim, 0.06), reconstruction).eval()


def write_photos(folder: Path) -> Path:
    """Twelve pictures of the encoder's own size, so that they reach it unchanged."""
    return write_colours(folder, 4, size=(16, 16))
