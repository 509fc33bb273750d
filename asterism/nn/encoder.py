"""The network people use afterwards: images in, features out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from asterism.errors import UserError
from asterism.nn.backbone import Backbone
from asterism.types import Features

Triple = tuple[float, float, float]
Picture = str | Path | Image.Image | np.ndarray[Any, Any] | Tensor

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)

FILE_NAME = "encoder.safetensors"
METADATA_KEY = "asterism"


class Encoder(nn.Module):
    """A backbone with the pixel statistics and the image size it expects.

    Subclasses that know concepts override `forward` and fill `sparse` and `where`.
    """

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

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Features:
        """Features of normalised pixels."""
        tokens = self.backbone(pixels)
        cls = tokens.patches.mean(dim=1) if tokens.cls is None else tokens.cls
        return Features(cls=cls, patches=tokens.patches, grid=tokens.grid)

    @torch.no_grad()
    def encode(self, images: Tensor | Sequence[Picture]) -> Features:
        """Features of images, on the encoder's device and without gradients.

        A tensor [b, 3, h, w] (uint8, or float in [0, 1]) is taken at its own size. A list of paths, PIL images, arrays
        [h, w, 3] or tensors [3, h, w] is brought to `image_size`: the shorter side is resized to it (bicubic,
        antialiased; not at all if it already fits) and the middle square is cut out.
        """
        if not isinstance(images, Tensor):
            images = torch.stack([_square(_as_pil(image), self.image_size) for image in images])
        return self(self.normalise(images))

    def normalise(self, images: Tensor) -> Float[Tensor, "b 3 h w"]:
        """Pixels as `forward` wants them, from uint8 or from [0, 1]."""
        if images.ndim != 4 or images.shape[1] != 3:
            raise UserError(f"expected images of shape [b, 3, h, w], got {list(images.shape)}")
        device = next(self.parameters()).device
        images = images.to(device)
        pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean) / std

    @property
    def timm_arguments(self) -> dict[str, Any]:
        """`timm.create_model(**encoder.timm_arguments)` gives the plain network whose weights `save` writes."""
        architecture = self.backbone.architecture
        return {"model_name": architecture.name, **architecture.arguments}

    def save(self, path: str | Path) -> Path:
        """Write weights under plain timm names, and in the file's metadata all it takes to rebuild the encoder."""
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        description = {
            "architecture": asdict(self.backbone.architecture),
            "mean": self.mean,
            "std": self.std,
            "image_size": self.image_size,
        }
        tensors = {
            name: value.detach().cpu().contiguous() for name, value in self.backbone.network.state_dict().items()
        }
        _write_atomically(path, tensors, {METADATA_KEY: json.dumps(description)})
        return path


def _write_atomically(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, metadata)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _as_pil(picture: Picture) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, str | Path):
        try:
            return Image.open(picture)
        except OSError as error:
            raise UserError(f"cannot read image {picture}: {error}") from None
    if isinstance(picture, Tensor):
        picture = picture.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(picture)


def _square(image: Image.Image, size: int) -> Tensor:
    image = image.convert("RGB")
    scale = size / min(image.size)
    if scale != 1:
        shape = [max(size, round(side * scale)) for side in image.size]
        image = image.resize((shape[0], shape[1]), Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in image.size)
    image = image.crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
