"""LPIPS: a perceptual distance between two images (Zhang et al., 2018).

Features of five layers of a network trained on ImageNet are scaled to unit length at every place; their squared
difference is weighted by a head that was fitted to human judgements. The heads are those of the package `lpips` (extra
`metrics`, version 0.1); the network is torchvision's, and its weights must be in torch's cache. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from asterism.errors import UserError

PerceptualName = Literal["auto", "alex", "vgg", "none"]

SMALLEST_SIDE = 32  # pixels; AlexNet's strides leave nothing of smaller images

_TRUNKS = {"alex": "alexnet-owt-7be5be79.pth", "vgg": "vgg16-397923af.pth"}
_SLICES = {"alex": (2, 5, 8, 10, 12), "vgg": (4, 9, 16, 23, 30)}  # where each layer's features end
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # of pixels in [−1, 1]
_EPSILON = 1e-10


class Lpips(nn.Module):
    """The distance for one kind of network, `alex` or `vgg`."""

    def __init__(self, kind: str, heads: dict[str, Tensor], trunk: nn.Sequential) -> None:
        """heads: as in the package's file. trunk: the convolutions (`features`) of torchvision's network."""
        super().__init__()
        self.name = f"lpips_{kind}"
        starts = (0, *_SLICES[kind][:-1])
        self.slices = nn.ModuleList(trunk[a:b] for a, b in zip(starts, _SLICES[kind], strict=True))
        for number in range(len(self.slices)):
            self.register_buffer(f"head{number}", heads[f"lin{number}.model.1.weight"].flatten())
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, a: UInt8[Tensor, "b 3 h w"], b: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, " b"]:
        """Σ over layers of the mean over places of Σ_c w_c (f_a − f_b)²_c."""
        x, y = _scaled(a), _scaled(b)
        total = x.new_zeros(len(x))
        for number, part in enumerate(self.slices):
            x, y = part(x), part(y)
            difference = (_unit(x) - _unit(y)).square()
            total = total + torch.einsum("bchw,c->bhw", difference, self.get_buffer(f"head{number}")).mean((1, 2))
        return total


def missing_for(kind: str) -> str | None:
    """Why LPIPS with this network cannot be measured here; None if it can."""
    if _heads_file(kind) is None:
        return "the package 'lpips' is not installed: pip install 'asterism[metrics]'"
    if not _trunk_file(kind).is_file():
        name = {"alex": "alexnet", "vgg": "vgg16"}[kind]
        return (
            f"the weights of its network are not in {_trunk_file(kind)}; let torchvision.models.{name}"
            "(weights='DEFAULT') download them once"
        )
    return None


def perceptual_distance(name: PerceptualName) -> Lpips | None:
    """The distance of this name; auto: with AlexNet, as is usual for measuring, or None if it is not available."""
    if name == "none":
        return None
    kind = "alex" if name == "auto" else name
    missing = missing_for(kind)
    if missing is not None:
        if name == "auto":
            return None
        raise UserError(f"reconstruction.perceptual = {name}, but {missing}")
    from torchvision import models  # slow to import

    file = _heads_file(kind)
    assert file is not None
    network: Any = {"alex": models.alexnet, "vgg": models.vgg16}[kind](weights=None)
    network.load_state_dict(torch.load(_trunk_file(kind), map_location="cpu", weights_only=True))
    return Lpips(kind, torch.load(file, map_location="cpu", weights_only=True), network.features)


def _scaled(images: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b 3 h w"]:
    pixels = images.float() / 127.5 - 1
    shift, scale = (torch.tensor(values, device=images.device)[:, None, None] for values in (_SHIFT, _SCALE))
    return (pixels - shift) / scale


def _unit(x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    return x / (x.norm(dim=1, keepdim=True) + _EPSILON)


def _heads_file(kind: str) -> Path | None:
    spec = importlib.util.find_spec("lpips")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = (Path(folder) / "weights" / "v0.1" / f"{kind}.pth" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _trunk_file(kind: str) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / _TRUNKS[kind]
