"""Self-distillation, shared by DINO, iBOT, SOP, FLSL and CrIBo: a student predicts its momentum encoder's output.

backbone, head                    the student, which is trained
teacher_backbone, teacher_head    the teacher, which follows it after every step and is used after training
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from asterism.methods.base import Method, MethodConfig
from asterism.nn.backbone import BackboneConfig
from asterism.nn.encoder import Encoder
from asterism.nn.heads import LeveledPrototypeHead, PrototypeHead, WeightNormLinear
from asterism.nn.teacher import Teacher
from asterism.ops.losses import entropy
from asterism.ops.precision import at_least_float32
from asterism.ops.schedules import cosine, ramp_per_epoch
from asterism.ranges import Count, CountFromZero, Share, Temperature
from asterism.types import Progress


class TeacherConfig(MethodConfig):
    """How the teacher follows, and how sharp targets and predictions are. Temperatures divide logits."""

    momentum: Share = 0.996  # of the teacher at the start; a cosine takes it to 1
    student_temp: Temperature = 0.1
    warmup_teacher_temp: Temperature = 0.04  # the teacher's at the start
    teacher_temp: Temperature = 0.07  # the teacher's after the warm-up
    warmup_teacher_temp_epochs: CountFromZero = 30


class PrototypeHeadConfig(TeacherConfig):
    """A head with learned prototypes: layers, normalisation to unit length, and cosines with each prototype."""

    hidden_dim: Count = 2048
    bottleneck_dim: Count = 256
    norm_last_layer: bool = True  # prototype gains fixed to 1: more stable, slightly less accurate
    freeze_last_layer: CountFromZero = 1  # epochs in which the prototypes are frozen


C = TypeVar("C", bound=TeacherConfig)
P = TypeVar("P", bound=PrototypeHeadConfig)
H = TypeVar("H", bound=nn.Module)


def prototype_head(config: PrototypeHeadConfig, in_dim: int, out_dim: int) -> PrototypeHead:
    return PrototypeHead(
        in_dim, out_dim, config.hidden_dim, config.bottleneck_dim, norm_last_layer=config.norm_last_layer
    )


def leveled_prototype_head(
    config: PrototypeHeadConfig, in_dim: int, out_dims: Mapping[str, int]
) -> LeveledPrototypeHead:
    return LeveledPrototypeHead(
        in_dim, out_dims, config.hidden_dim, config.bottleneck_dim, norm_last_layer=config.norm_last_layer
    )


class SelfDistillation(Method, Generic[C, H]):
    """Student and teacher of the same shape."""

    config: C

    def __init__(self, config: C, backbone: BackboneConfig, head: Callable[[int], H]) -> None:
        """`head` builds the head for a given number of token channels."""
        super().__init__(config, backbone)
        self.head = head(self.backbone.dim)
        self.teacher_backbone = Teacher(self.backbone)
        self.teacher_head = Teacher(self.head)

    @property
    def pairs(self) -> Sequence[tuple[nn.Module, Teacher[Any]]]:
        """Both parts of the student, each with the part of the teacher that follows it."""
        return [(self.backbone, self.teacher_backbone), (self.head, self.teacher_head)]

    def teacher_temp(self, progress: Progress) -> float:
        """Increases once per epoch: low temperatures are stable, higher ones give richer targets."""
        config = self.config
        return ramp_per_epoch(
            progress, config.warmup_teacher_temp_epochs, config.warmup_teacher_temp, config.teacher_temp
        )

    def teacher_momentum(self, progress: Progress) -> float:
        """Increases to 1 along a cosine, so that the teacher stops changing."""
        return cosine(progress.step, progress.steps, self.config.momentum, 1.0)

    def after_update(self, progress: Progress) -> None:
        """Update the teacher; methods with a centre or memory extend this."""
        for student, teacher in self.pairs:
            teacher.update(student, self.teacher_momentum(progress))

    def backbone_was_loaded(self) -> None:
        self.teacher_backbone.update(self.backbone, momentum=0.0)

    def encoder(self) -> Encoder:
        """The teacher, which performs better than its student throughout training and which the papers evaluate."""
        return Encoder(self.teacher_backbone.network, self.mean, self.std)


class PrototypeDistillation(SelfDistillation[P, H]):
    """Self-distillation with learned prototypes, which are frozen during the first epochs."""

    def frozen(self, progress: Progress) -> Iterable[nn.Parameter]:
        if progress.epoch >= self.config.freeze_last_layer:
            return ()
        layers = [layer for student, _ in self.pairs for layer in student.modules()]
        return [p for layer in layers if isinstance(layer, WeightNormLinear) for p in layer.parameters()]


def prototype_entropies(
    loss: Float[Tensor, ""], targets: Float[Tensor, "t b k"], logits: Float[Tensor, "t b k"], student_temp: float
) -> dict[str, Float[Tensor, ""]]:
    """Entropies of targets and predictions, for monitoring; the loss is the targets' entropy plus `kl`."""
    predictions = (at_least_float32(logits.detach()) / student_temp).softmax(dim=-1)
    target_entropy = entropy(targets)
    return {
        "target_entropy": target_entropy,
        "prediction_entropy": entropy(predictions),
        "kl": loss.detach() - target_entropy,
    }
