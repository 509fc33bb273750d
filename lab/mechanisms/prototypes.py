"""Prototypes: how many are in use, how pure they are, and how far they move; learned (DINO, iBOT) or drawn (SOP)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from asterism.data import Source, evaluation_batches, open_source
from asterism.data.parts import labels_of
from asterism.data.sources.derived import Subset
from asterism.errors import UserError
from asterism.methods.base import Method
from asterism.methods.sop import Sop
from asterism.nn.heads import LeveledPrototypeHead, ProjectionHead, PrototypeHead, WeightNormLinear
from asterism.nn.teacher import Teacher
from asterism.ops import streams
from asterism.ops.prototypes import log_probabilities
from asterism.ops.purity import effective_count, largest_share, purity
from asterism.train import checkpoint
from asterism.train.building import build_method, load_method
from asterism.train.run import Run
from asterism.types import Progress
from lab.mechanisms.agreement import group_counts


@dataclass(frozen=True)
class PrototypeUse:
    """How images are distributed over K prototypes, each assigned to its most likely one."""

    prototypes: int
    used: float  # share of prototypes with at least one image, in percent
    effective: float  # number of equally used prototypes with the same entropy
    purity: float  # share of the images that have the main class of their prototype, in percent
    purity_of_one: float  # the purity of a single prototype

    def values(self) -> dict[str, float]:
        return {
            "prototypes": float(self.prototypes),
            "used": self.used,
            "effective": self.effective,
            "purity": self.purity,
            "purity_of_one": self.purity_of_one,
        }


def measure_use(run: Run, data: str | None = None, images: int = 1000) -> PrototypeUse:
    """Use of the teacher's prototypes, on labelled images of the run's own data or of `data`."""
    method, recipe = load_method(run), run.recipe
    source = open_source(data or recipe.data.path, None if data else recipe.data.split)
    labels_of(source)
    part = Subset(source, list(range(min(images, len(source)))))
    tokens, labels = _embedded(method, part)
    return prototype_use(preferences(method, tokens), labels)


def prototype_use(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> PrototypeUse:
    count = logits.shape[1]
    counts = group_counts(logits.argmax(1), labels, count, int(labels.max()) + 1)
    sizes = counts.sum(1)
    return PrototypeUse(
        prototypes=count,
        used=100 * (sizes > 0).double().mean().item(),
        effective=effective_count(sizes).item(),
        purity=100 * purity(counts).item(),
        purity_of_one=100 * largest_share(counts).item(),
    )


@torch.no_grad()
def preferences(method: Method, tokens: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """The teacher's logits of images over its prototypes; for SOP, those of one draw."""
    if isinstance(method, Sop) and method.images is not None:
        drawn = next(method.images.prototypes(method.images.draw(Progress(0, 1, 1), streams.SopAnchors.IMAGES)))
        return log_probabilities(method.teacher_head(tokens), drawn, method.config.student_temp)
    learned = _learned(method)
    if learned is not None:
        head, layer = learned
        return layer(head.project(tokens))
    raise UserError(f"{type(method).__name__} has no image prototypes; measure dino, ibot, cribo or sop")


def measure_drift(run: Run) -> dict[str, float]:
    """How far learned prototypes moved between consecutive kept checkpoints: 1 − mean cosine, by the later step."""
    steps = checkpoint.steps(run.checkpoints)
    recipe = run.recipe
    if isinstance(build_method(recipe), Sop):
        raise UserError(f"{run.path}: prototypes of sop are drawn anew at every step, so they do not drift")
    found: list[Tensor] = []
    for step in steps:
        method = build_method(recipe)
        method.load_state_dict(checkpoint.read(run.checkpoints / f"step-{step:08d}").method)
        learned = _learned(method)
        if learned is None:
            raise UserError(f"{run.path} has no learned image prototypes")
        found.append(learned[1].weight.detach())
    return {str(step): drift(a, b) for step, a, b in zip(steps[1:], found, found[1:], strict=False)}


def _learned(method: Method) -> tuple[ProjectionHead, WeightNormLinear] | None:
    """The teacher's head, and the last layer with its prototypes of images, if it has them."""
    teacher = getattr(method, "teacher_head", None)
    head = teacher.network if isinstance(teacher, Teacher) else None
    if isinstance(head, PrototypeHead):
        return head, head.last_layer
    if isinstance(head, LeveledPrototypeHead) and "image" in head.last_layers:
        layer = head.last_layers["image"]
        assert isinstance(layer, WeightNormLinear)
        return head, layer
    return None


def drift(before: Float[Tensor, "k d"], after: Float[Tensor, "k d"]) -> float:
    """1 − mean cosine: 0 for prototypes that did not move, 1 for prototypes that are unrelated to before."""
    return 1 - F.cosine_similarity(before, after, dim=1).mean().item()


@torch.no_grad()
def _embedded(method: Method, source: Source) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    encoder = method.encoder().eval()
    rows, labels = [], []
    for batch in evaluation_batches(source, encoder.image_size, batch_size=64):
        assert batch.labels is not None
        rows.append(encoder.encode_cls(batch.images).float())
        labels.append(batch.labels)
    return torch.cat(rows), torch.cat(labels)
