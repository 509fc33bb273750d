"""Networks whose features a Fréchet distance is measured in, each with a name to state with the result.

Inception is used if torchvision's weights for it are already in torch's cache; nothing is downloaded. Otherwise a stack
of convolutions with fixed random weights replaces it: it responds to edges, colours and textures at several scales,
needs no file, and is the same on every machine. Distances from different networks must never be compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.ops.random import fold, generator

NetworkName = Literal["auto", "inception", "random-convolutions"]

_INCEPTION_FILE = "inception_v3_google-0cc3c7bd.pth"
_INCEPTION_SIDE = 299


class FeatureNetwork(nn.Module, ABC):
    """Maps each image to one vector."""

    name: str
    dim: int

    @abstractmethod
    def forward(self, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]: ...


class RandomConvolutions(FeatureNetwork):
    """Five levels of 3×3 convolutions and halvings; mean and spread of every channel of every level."""

    name = "random-convolutions-v1"
    _widths = (16, 32, 32, 64, 64)

    def __init__(self) -> None:
        super().__init__()
        self.dim = 2 * sum(self._widths)
        for level, (inputs, outputs) in enumerate(zip((3, *self._widths), self._widths, strict=False)):
            weight = torch.randn(outputs, inputs, 3, 3, generator=generator(fold(7, level)))
            self.register_buffer(f"weight{level}", weight * (2 / (9 * inputs)) ** 0.5)

    def forward(self, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        x = images.float() / 127.5 - 1
        found = []
        for level in range(len(self._widths)):
            x = F.leaky_relu(F.conv2d(x, self.get_buffer(f"weight{level}"), padding=1), 0.2)
            found += [x.mean((2, 3)), x.flatten(2).std(2, correction=0)]
            x = F.avg_pool2d(x, 2, ceil_mode=True)
        return torch.cat(found, dim=1)


class Inception(FeatureNetwork):
    """The 2048 pooled features of torchvision's Inception v3. Its weights were retrained on ImageNet, so its distances
    are close to those of the original weights but not the same."""

    name = "inception-v3-torchvision"
    dim = 2048

    def __init__(self, weights: Path) -> None:
        super().__init__()
        from torchvision.models import inception_v3  # slow to import

        network: Any = inception_v3(weights=None, init_weights=False, transform_input=False)
        network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        network.fc = nn.Identity()
        self.network = network.eval()

    def forward(self, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        side = (_INCEPTION_SIDE, _INCEPTION_SIDE)
        pixels = F.interpolate(images.float(), side, mode="bilinear", antialias=True)
        return self.network(pixels / 127.5 - 1)


def feature_network(name: NetworkName) -> FeatureNetwork:
    weights = Path(torch.hub.get_dir()) / "checkpoints" / _INCEPTION_FILE
    if name == "inception" and not weights.is_file():
        raise UserError(
            f"Inception's weights are not in {weights}; let torchvision.models.inception_v3(weights='DEFAULT') "
            "download them once, or choose reconstruction.network=random-convolutions"
        )
    if name == "random-convolutions" or not weights.is_file():
        return RandomConvolutions().eval()
    return Inception(weights).eval()
