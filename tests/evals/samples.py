"""Small labelled folders and a small encoder for the tests of evaluations, embeddings and the command line."""

from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.nn.encoder import Encoder
from asterism.ops.random import fold, generator
from asterism.types import Features

COLOURS = {"blue": (30, 40, 200), "green": (30, 200, 40), "red": (200, 40, 30)}


def write_colours(folder: Path, each: int, size: tuple[int, int] = (20, 24), seed: int = 0) -> Path:
    """`each` noisy images per colour, in a subfolder per colour; size is height and width."""
    for label, (name, colour) in enumerate(COLOURS.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            noise = torch.randint(-30, 31, (*size, 3), generator=generator(fold(seed, label, number)))
            pixels = (torch.tensor(colour) + noise).clamp(0, 255).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / name / f"{number:03d}.png")
    return folder


def small_encoder(image_size: int = 16, seed: int = 0) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = BackboneConfig(
            name="vit_tiny_patch16_224", image_size=image_size, patch_size=8, dim=16, depth=1, heads=2
        )
        return Encoder(build_backbone(config)).eval()


class MeanColours(Encoder):
    """The mean colour of every patch, which distinguishes what these pictures show."""

    def __init__(self, patch: int = 8) -> None:
        super().__init__(small_encoder().backbone)
        self.backbone.patch_size = patch

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        means = F.avg_pool2d(pixels, self.backbone.patch_size)
        patches = means.flatten(2).mT
        return Features(patches.mean(1), patches, (means.shape[2], means.shape[3]))
