"""Shared by the replays of DINO, iBOT, MaSSL and SOP: networks with official names, and both kinds of tolerance."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.methods.parts.self_distillation import SelfDistillation
from asterism.nn.backbone import BackboneConfig
from asterism.train.optim import OptimConfig
from asterism.types import Batch, Progress
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.steps import Step, batch_of
from tests.golden.vectors import Vectors

SCHEDULE = 1e-12  # README: tolerance of learning rates, decays, momenta and temperatures

# Names of heads: official → ours
Names = Mapping[str, str]


def backbone_config(params: Mapping[str, Any]) -> BackboneConfig:
    return BackboneConfig(
        name="vit_small_patch16_224",
        image_size=params["image_size"],
        patch_size=params["patch_size"],
        dim=params["embed_dim"],
        depth=params["depth"],
        heads=params["num_heads"],
        drop_path=params["drop_path_rate"],
        resampling="offset",
    )


def optim_config(params: Mapping[str, Any], betas: str) -> OptimConfig:
    return OptimConfig(
        lr=params["lr"],
        min_lr=params["min_lr"],
        warmup_epochs=params["warmup_epochs"],
        weight_decay=params["weight_decay"],
        weight_decay_end=params["weight_decay_end"],
        betas=params[betas],
        clip=params["clip_grad"],
    )


@dataclass(frozen=True)
class Networks:
    """The tensors of both networks of a method under their official names."""

    method: SelfDistillation[Any, Any]
    heads: Names

    def ours(self, name: str) -> str:
        if name == "backbone.masked_embed":
            return "backbone.mask_token"
        if name.startswith("backbone."):
            return name.replace("backbone.", "backbone.network.", 1)
        for official, own in self.heads.items():
            if name.startswith(official):
                return own + name.removeprefix(official)
        return name

    def student(self, name: str) -> Tensor:
        return self.method.get_parameter(self.ours(name)).detach()

    def teacher(self, name: str) -> Tensor:
        part, rest = self.ours(name).split(".", 1)
        return self.method.get_parameter(f"teacher_{part}.network.{rest}").detach()

    @torch.no_grad()
    def load(self, vectors: Vectors) -> None:
        """Load the initial state; the teacher starts as a copy of the student, except for tensors given in the file."""
        for name, tensor in _named(vectors, "init__").items():
            self.student(name).copy_(tensor)
        for student, teacher in self.method.pairs:
            teacher.update(student, momentum=0.0)
        for name, tensor in _named(vectors, "init_teacher__").items():
            self.teacher(name).copy_(tensor)

    def unloaded(self, vectors: Vectors) -> set[str]:
        """Trained parameters that the file does not set: there should be none."""
        given = {self.ours(name) for name in _named(vectors, "init__")}
        return {name for name, p in self.method.named_parameters() if p.requires_grad} - given


def batch_at(vectors: Vectors, step: int, dtype: torch.dtype) -> Batch:
    views = list(vectors["in_views_global"][step])
    if "in_views_local" in vectors.arrays:
        views += list(vectors["in_views_local"][step])
    return batch_of([view.to(dtype) for view in views])


def progress_of(params: Mapping[str, Any]) -> Any:
    per_epoch = params["niter_per_epoch"]
    return lambda step: Progress(step, params["epochs"] * per_epoch, per_epoch)


class Recorder:
    """Collects one value per step under each name, and compares the series with the file's."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors
        self.series: dict[str, list[np.ndarray]] = {}

    def add(self, name: str, value: Tensor | float) -> None:
        array = value.detach().clone().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.series.setdefault(name, []).append(array)

    def ours(self, name: str) -> np.ndarray:
        return np.stack(self.series[name])

    def schedules(self, step: Step, method: SelfDistillation[Any, Any]) -> None:
        self.add("out_lr", step.lr)
        self.add("out_weight_decay", step.weight_decay)
        self.add("out_momentum", method.teacher_momentum(step.progress))
        self.add("out_teacher_temp", method.teacher_temp(step.progress))

    def gradients(self, step: Step, networks: Networks) -> None:
        norms = step.gradient_norms
        self.add("out_grad_norm", step.gradient_norm)
        names = self.vectors.params["grad_norm_names"]
        self.add("out_grad_norms", torch.tensor([norms[networks.ours(name)] for name in names]))

    def compared(self, name: str, tolerance: float, relative: bool = False, group: str | None = None) -> Compared:
        """`relative`: the tolerance is relative to the largest absolute value of the official series."""
        theirs = self.vectors[name].numpy().astype(np.float64)
        scale = np.abs(theirs).max() if relative else 1.0
        label = name if group is None else f"{group}/{name}"
        return Compared(label, self.ours(name).reshape(theirs.shape) / scale, theirs / scale, tolerance)


def key_part(name: str, tensor: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Remove the keys' part of an attention bias: its true gradient is zero, and Adam amplifies rounding noise."""
    return np.delete(tensor, slice(start, stop), axis=-1) if name.endswith("attn.qkv.bias") else tensor


def finals(vectors: Vectors, networks: Networks) -> Iterator[tuple[str, str, np.ndarray, np.ndarray, np.ndarray]]:
    """Network, name, our final tensor, the official one and the initial one, for every tensor of both networks."""
    initial = _named(vectors, "init__")
    for kind, prefix, find, start in (
        ("student", "final__", networks.student, initial),
        ("teacher", "final_teacher__", networks.teacher, initial | _named(vectors, "init_teacher__")),
    ):
        for name, theirs in _named(vectors, prefix).items():
            yield kind, name, find(name).numpy(), theirs.numpy(), start[name].numpy()


def _named(vectors: Vectors, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in vectors.arrays.items() if name.startswith(prefix)}
