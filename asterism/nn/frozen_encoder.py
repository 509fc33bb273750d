"""An encoder that a method uses but does not train, such as the teacher of a distillation."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import unknown
from asterism.nn.encoder import Encoder
from asterism.nn.fingerprint import encoder_fingerprint
from asterism.nn.weights.description import WeightsOptions
from asterism.nn.weights.load import load_encoder
from asterism.ops.normalise import normalise
from asterism.ranges import Pixels
from asterism.types import Features

InputSize = Pixels | Literal["own", "view"]

# A method is rebuilt whenever a checkpoint is exported. Weak references let it share the network of the method in
# training instead of reading it again, and free the network with the last method that uses it.
_in_use: weakref.WeakValueDictionary[str, Encoder] = weakref.WeakValueDictionary()


class FrozenEncoder:
    """Features of images without gradients, with the encoder's own pixel statistics and input size.

    Not a module: a method that holds one neither trains, shards nor saves it. Checkpoints keep its fingerprint.
    """

    def __init__(
        self, source: str, options: Mapping[str, Any] | None = None, size: InputSize = "own", view: int | None = None
    ) -> None:
        """source: anything `load_encoder` reads; options: its other arguments.

        size: pixels per side of the encoder's input; own: the size its weights were made for; view: the size of the
        images that it is given, `view`, rounded to whole patches.
        """
        self.source = source
        self.encoder = _load(source, dict(options or {}))
        self.size = self._resolved(size, view)

    @property
    def dim(self) -> int:
        """Channels of the class token and of the patches."""
        return self.encoder.backbone.dim

    @cached_property
    def fingerprint(self) -> str:
        return encoder_fingerprint(self.encoder)

    @property
    def bytes(self) -> int:
        """Memory of the weights."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.encoder.state_dict().values())

    @torch.no_grad()
    def __call__(self, images: Float[Tensor, "b 3 h w"]) -> Features:
        """Features of images in [0, 1] of any size, on their device."""
        encoder = self.encoder.to(images.device)
        if images.shape[-2:] != (self.size, self.size):
            images = F.interpolate(images, (self.size, self.size), mode="bicubic", antialias=True).clamp(0, 1)
        return encoder(normalise(images, encoder.mean, encoder.std))

    def _resolved(self, size: InputSize, view: int | None) -> int:
        patch = self.encoder.patch_size
        if size == "own" or (size == "view" and view is None):
            return self.encoder.image_size
        if size == "view":
            assert view is not None
            return max(patch, round(view / patch) * patch)
        # The constructor of an encoder refuses sizes that do not divide into patches.
        return Encoder(self.encoder.backbone, image_size=size).image_size


def _load(source: str, options: dict[str, Any]) -> Encoder:
    allowed = WeightsOptions.model_fields.keys() - {"image_size"}
    for name in options:
        if name not in allowed:
            raise unknown("weights option", name, allowed)
    key = json.dumps([source, options, _stamp(Path(source))], sort_keys=True, default=str)
    encoder = _in_use.get(key)
    if encoder is None:
        # A network is initialised before its weights are loaded. That must not change what a method draws next, which
        # would depend on whether the network was in use already.
        with torch.random.fork_rng(devices=[]):
            encoder = load_encoder(source, **options).requires_grad_(False).eval()
        _in_use[key] = encoder
    return encoder


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and date of the files that the weights may be in, so that replaced weights are read again."""
    files = sorted(path.glob("*.*")) if path.is_dir() else [path]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
