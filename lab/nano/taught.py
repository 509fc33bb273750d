"""The method behind nano: a student predicts a teacher's feature maps, which `lessons` computed once.

A crop of an image shows a part of it, and the target is that part of the teacher's map. The student must find what the
teacher found (its features and its classes), where it is (patches), and which images are alike.

    m_i           the teacher's map at the centres of the crop's patches, bilinear; m their mean
    c, c_i        class token and patches of the student
    s, s_i        linear in c and c_i
    W, b          the teacher's classifier
    L_image       1 − cos(s, m)
    L_patches     mean over i of 1 − cos(s_i, m_i)
    L_classes     KL(softmax((W m + b)/T) ‖ softmax((W s + b)/T)) · T²
    L_alike       KL between the softmaxes of cos(m, m′)/τ_T and cos(c, c′)/τ_S over the other images of the batch
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from asterism.methods.base import Method, MethodConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.encoder import Encoder
from asterism.nn.safetensors_file import read_safetensors
from asterism.ops.geometry import patch_centers
from asterism.ranges import AreaRange, NonNegative, Pixels, Temperature
from asterism.types import Batch, ColorJitter, CropGeometry, Losses, Progress, ViewSpec

_SIDE = 5  # places of a map in each direction


class TaughtConfig(MethodConfig):
    """Settings of the lesson; weights are of the terms of the loss, that of the image is 1."""

    name: Literal["taught"] = "taught"

    lessons: str  # the folder that `lessons` wrote, of the same images
    start: str | None = None  # method.safetensors of a checkpoint to go on from, with other settings
    image_size: Pixels = 40
    scale: AreaRange = (0.4, 1.0)
    patches_weight: NonNegative = 0.5
    classes_weight: NonNegative = 1.0
    alike_weight: NonNegative = 1.0
    temperature: Temperature = 1.0  # T
    teacher_temp: Temperature = 0.05  # τ_T
    student_temp: Temperature = 0.1  # τ_S


class Taught(Method):
    """The student, its two linear maps to the teacher's channels, and the maps."""

    Config: ClassVar[type[MethodConfig]] = TaughtConfig
    config: TaughtConfig

    def __init__(self, config: TaughtConfig, backbone: BackboneConfig) -> None:
        super().__init__(config, backbone)
        folder = Path(config.lessons)
        self.maps = np.load(folder / "maps.npy", mmap_mode="r")
        classifier = np.load(folder / "classifier.npz")
        channels = self.maps.shape[-1]
        self.register_buffer("weight", torch.from_numpy(classifier["weight"]).float(), persistent=False)
        self.register_buffer("bias", torch.from_numpy(classifier["bias"]).float(), persistent=False)
        self.image_head = nn.Linear(self.backbone.dim, channels)
        self.patch_head = nn.Linear(self.backbone.dim, channels)
        if config.start is not None:
            self.load_state_dict(dict(read_safetensors(Path(config.start))[0]))

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        jitter = ColorJitter(brightness=0.3, contrast=0.3, saturation=0.2, hue=0.02, probability=0.5)
        return (ViewSpec(size=self.config.image_size, scale=self.config.scale, jitter=jitter, grayscale=0.05),)

    def loss(self, batch: Batch, progress: Progress) -> Losses:
        view = batch.views[0]
        tokens = self.backbone(view.pixels, drop_keys=batch.keys)
        assert tokens.cls is not None
        whole = torch.from_numpy(self.maps[batch.index.cpu().numpy()]).to(view.pixels.device).float()
        m_i = at_patches(whole.mT.unflatten(2, (_SIDE, _SIDE)), view.geometry, tokens.grid)
        m = m_i.mean(dim=1)
        s, s_i = self.image_head(tokens.cls).float(), self.patch_head(tokens.patches).float()
        classes = partial(F.linear, weight=self.weight, bias=self.bias)
        terms = {
            "image": (1 - F.cosine_similarity(s, m, dim=-1)).mean(),
            "patches": (1 - F.cosine_similarity(s_i, m_i, dim=-1)).mean(),
            "classes": divergence(classes(m), classes(s), self.config.temperature),
            "alike": self.likeness(tokens.cls.float(), m),
        }
        weights = {name: getattr(self.config, f"{name}_weight") for name in ("patches", "classes", "alike")}
        return Losses(terms=terms, weights=weights, embeddings=tokens.cls.detach())

    def likeness(self, student: Float[Tensor, "b d"], teacher: Float[Tensor, "b e"]) -> Float[Tensor, ""]:
        """L_alike."""
        own = torch.eye(len(student), dtype=torch.bool, device=student.device)
        rows = [
            (F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).T / temperature).masked_fill(own, -1e4)
            for x, temperature in ((teacher, self.config.teacher_temp), (student, self.config.student_temp))
        ]
        return divergence(rows[0], rows[1], 1.0)

    def encoder(self) -> Encoder:
        return Encoder(self.backbone, self.mean, self.std)


def at_patches(maps: Float[Tensor, "b c _ _"], geometry: CropGeometry, grid: tuple[int, int]) -> Float[Tensor, "b n c"]:
    """Maps of whole images at the centres of a view's patches."""
    points = patch_centers(geometry, grid)
    size = torch.stack((geometry.image_width, geometry.image_height), dim=-1)[:, None]
    places = (points + 0.5) / size * 2 - 1
    return F.grid_sample(maps, places[:, None], padding_mode="border", align_corners=False)[:, :, 0].mT


def divergence(teacher: Float[Tensor, "b k"], student: Float[Tensor, "b k"], temperature: float) -> Float[Tensor, ""]:
    """KL(softmax(teacher/T) ‖ softmax(student/T)) · T², a mean over rows."""
    targets, predicted = (logits / temperature for logits in (teacher, student))
    return (
        F.kl_div(predicted.log_softmax(-1), targets.log_softmax(-1), reduction="batchmean", log_target=True)
        * temperature**2
    )
