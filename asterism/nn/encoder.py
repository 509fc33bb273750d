"""The trained network as it is used: images in, features out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.images.pictures import Pictures, batch_of
from asterism.nn.backbone import Backbone
from asterism.nn.safetensors_file import write_safetensors
from asterism.ops.normalise import IMAGENET_MEAN, IMAGENET_STD, Triple, normalise
from asterism.types import Features, Tokens

FILE_NAME = "encoder.safetensors"


class Encoder(nn.Module):
    """A backbone with the pixel statistics and the image size it expects.

    Subclasses with concepts override `forward` and fill `sparse` and `where`. One that changes `cls` overrides `vector`
    as well.
    """

    step: int | None = None  # optimiser steps of its run, if known
    # Height and width to which `named_outputs` pads smaller images; None: it takes them as they are.
    canvas: tuple[int, int] | None = None

    def __init__(
        self,
        backbone: Backbone,
        mean: Triple = IMAGENET_MEAN,
        std: Triple = IMAGENET_STD,
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.mean = mean
        self.std = std
        self.image_size = image_size or backbone.image_size
        if self.image_size % backbone.patch_size:
            raise UserError(f"image_size = {self.image_size} is not a multiple of the patch size {backbone.patch_size}")

    @property
    def patch_size(self) -> int:
        """Pixels per side of a patch; image sides must be multiples of it."""
        return self.backbone.patch_size

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        """Features of normalised pixels."""
        tokens = self.backbone(pixels)
        return features_of(tokens, self.backbone.pool(tokens))

    def vector(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        """`forward(pixels).cls` alone."""
        return self.backbone.pool(self.backbone(pixels, needed=self.backbone.pooled_patches))

    def named_outputs(self, pixels: Float[Tensor, "b 3 h w"]) -> dict[str, Tensor]:
        """What an exported model returns for normalised pixels, by name: the tensors of `Features`.

        An encoder with further outputs, such as the scores of a classifier, adds them here.
        """
        features = self(pixels)
        outputs = {name: getattr(features, name) for name in ("cls", "patches", "sparse", "where", "aligned")}
        return {name: output for name, output in outputs.items() if output is not None}

    def set_backbone(self, backbone: Backbone) -> None:
        """Put another backbone in the place of its own, which it must equal: see `asterism.nn.graph`."""
        self.backbone = backbone

    def keep_named_outputs(self) -> None:
        """Drop what `named_outputs` does not need, from a copy that is recorded: see `asterism.nn.graph`."""

    @torch.no_grad()
    def encode(self, images: Pictures) -> Features:
        """Features of one or many images, on the encoder's device and without gradients.

        One image or a list, which may be mixed: paths, PIL images, arrays or tensors [h, w, 3], [3, h, w] or (grey)
        [h, w], of type uint8 or float in [0, 1]. The shorter side of each is resized to `image_size` (bicubic,
        antialiased; skipped if it already fits) and the centre square is cropped. One image gives a batch of one. A
        batch [b, 3, h, w] or [b, h, w, 3] is used at its own size, whose sides must be multiples of the patch size.

            encoder.encode("a.jpg").cls                       # [1, d]
            encoder.encode(["a.jpg", Path("b.png")]).patches  # [2, n, d]
            encoder.encode(Image.open("a.jpg"))
            encoder.encode(torch.rand(8, 3, 224, 224))

        Anything else raises a `UserError` that names it: floats in 0 … 255, other channels, an empty list.
        """
        return self(self.normalise(batch_of(images, self.image_size)))

    @torch.no_grad()
    def encode_cls(self, images: Pictures) -> Float[Tensor, "b d"]:
        """`encode(images).cls`, up to rounding, without the work that only patches need."""
        return self.vector(self.normalise(batch_of(images, self.image_size)))

    @torch.no_grad()
    def layers(self, images: Shaped[Tensor, "b c h w"], last: int) -> list[Features]:
        """Features after each of the `last` blocks, or of all if there are fewer; `encode` returns the last ones."""
        if last == 1:
            return [self.encode(images)]
        depth = self.backbone.depth
        blocks = range(max(0, depth - last), depth)
        layers = self.backbone.layers(self.normalise(images), blocks)
        return [features_of(tokens, self.backbone.pool(tokens)) for tokens in layers]

    def normalise(self, images: Shaped[Tensor, "b c h w"]) -> Float[Tensor, "b 3 h w"]:
        """Pixels as `forward` expects them, from uint8 or from floats in [0, 1]."""
        if images.shape[1] != 3:
            raise UserError(f"expected RGB images [b, 3, h, w], got the shape {list(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise UserError(f"expected pixels of type uint8, or float in [0, 1], got {images.dtype}")
        weight = next(self.parameters())
        pixels = images.to(weight.device)
        pixels = pixels if images.dtype == torch.uint8 else pixels.float()
        return normalise(pixels, self.mean, self.std).to(weight.dtype)

    @property
    def timm_arguments(self) -> dict[str, Any]:
        """`timm.create_model(**encoder.timm_arguments)` gives the plain network whose weights `save` writes."""
        architecture = self.backbone.architecture
        return {"model_name": architecture.name, **architecture.arguments}

    def save(self, path: str | Path, step: int | None = None) -> Path:
        """Write weights under plain timm names, with metadata to rebuild the encoder.

        In a folder, the file is `encoder.safetensors`. `step` is the number of optimiser steps behind the weights.
        """
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        description = {
            "architecture": asdict(self.backbone.architecture),
            "mean": self.mean,
            "std": self.std,
            "image_size": self.image_size,
            "step": self.step if step is None else step,
        }
        self.save_parts(path)
        network = self.backbone.network
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
        write_safetensors(path, tensors, description)
        return path

    def save_parts(self, path: Path) -> None:
        """Write what a plain timm network has no place for next to the file `path`; before that file, so that an
        encoder of some step never has older parts."""


def features_of(tokens: Tokens, vector: Float[Tensor, "b d"]) -> Features:
    """Features of a backbone's tokens, and of the vector that it pools from them."""
    return Features(cls=vector, patches=tokens.patches, grid=tokens.grid)
