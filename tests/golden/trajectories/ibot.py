"""Ten steps of bytedance/ibot."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.methods.ibot import Ibot, IbotConfig
from asterism.types import Batch, Losses, Progress
from tests.golden.trajectories import movement
from tests.golden.trajectories.compared import Compared
from tests.golden.trajectories.steps import train
from tests.golden.trajectories.teacher_and_student import (
    Networks,
    Recorder,
    backbone_config,
    batch_at,
    optim_config,
    progress_of,
)
from tests.golden.vectors import Vectors, read

FILES = "ibot*.npz"

HEADS = {"head.last_layer2.": "head.last_layers.patch.", "head.last_layer.": "head.last_layers.image."}


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    method, record = run(vectors, torch.float32)
    networks = Networks(method, HEADS)
    yield from movement.first_step(vectors, record, networks)
    yield from movement.schedules(record, "out_teacher_temp", "out_teacher_patch_temp")
    yield from movement.series(
        record,
        out_loss="loss",
        out_loss_cls="loss_cls",
        out_loss_patch="loss_patch",
        out_grad_norm="grad_norm",
        out_grad_norms="grad_norm",
        out_center="center",
        out_center_patch="center_patch",
    )
    yield from movement.snapshots(record)
    yield from movement.final_networks(vectors, networks)
    record.add("final_center", method.center.value)
    record.add("final_center_patch", method.patch_center.value)
    yield from movement.series(record, final_center="center", final_center_patch="center_patch")
    yield from movement.in_float64(run(vectors, torch.float64)[1])


def run(vectors: Vectors, dtype: torch.dtype) -> tuple[Ibot, Recorder]:
    params = vectors.params
    method = Ibot(config(params), backbone_config(params)).to(dtype)
    networks, record = Networks(method, HEADS), Recorder(vectors)
    assert not networks.unloaded(vectors)
    networks.load(vectors)

    def masks(step: int) -> list[Tensor]:
        return list(vectors["in_masks"][step].flatten(-2))

    def loss(progress: Progress) -> Losses:
        return method.losses(batch_at(vectors, progress.step, dtype), masks(progress.step), progress)

    for name, logits in first_outputs(method, batch_at(vectors, 0, dtype), masks(0)).items():
        record.add(f"out_step0_{name}", logits)
    steps = train(
        method, optim_config(params, "adamw_betas"), params["steps"], progress_of(params), loss, params["batch_size"]
    )
    for step in steps:
        if step.progress.step == 0:
            for name in params["grad_norm_names"]:
                record.add(f"out_step0_grad__{name}", step.gradients[networks.ours(name)])
        record.schedules(step, method)
        record.add("out_teacher_patch_temp", method.teacher_patch_temp(step.progress))
        record.gradients(step, networks)
        record.add("out_loss", step.losses.total)
        for term, value in step.losses.terms.items():
            record.add(f"out_loss_{term}", step.losses.weights[term] * value)
        record.add("out_center", method.center.value)
        record.add("out_center_patch", method.patch_center.value)
        movement.record_snapshots(record, networks)
    return method, record


@torch.no_grad()
def first_outputs(method: Ibot, batch: Batch, masks: list[Tensor]) -> dict[str, Tensor]:
    """Logits of whole views; the loss computes those of masked patches only."""
    count = len(masks)
    large = torch.cat([view.pixels for view in batch.views[:count]])
    tokens = method.backbone(large, mask=torch.cat(masks))
    seen = method.teacher_backbone(large)
    head, teacher = method.head, method.teacher_head.network
    outputs = {
        "student_cls": head.logits(head(tokens.cls), "image"),
        "student_patch": head.logits(head(tokens.patches), method.patch_level),
        "teacher_cls": teacher.logits(teacher(seen.cls), "image"),
        "teacher_patch": teacher.logits(teacher(seen.patches), method.teacher_patch_level),
    }
    if len(batch.views) > count:
        small = method.backbone(torch.cat([view.pixels for view in batch.views[count:]]))
        outputs["student_local_cls"] = head.logits(head(small.cls), "image")
    return outputs


def config(params: dict[str, Any]) -> IbotConfig:
    separate = not params["shared_head"]
    return IbotConfig(
        out_dim=params["out_dim"],
        patch_out_dim=params["patch_out_dim"] if separate else None,
        teacher_prototypes="image" if separate and params["shared_head_teacher"] else "as-student",
        hidden_dim=params["hidden_dim"],
        bottleneck_dim=params["bottleneck_dim"],
        norm_last_layer=params["norm_last_layer"],
        freeze_last_layer=params["freeze_last_layer"],
        mask={"start_epoch": params["pred_start_epoch"]},
        cls_weight=params["lambda1"],
        patch_weight=params["lambda2"],
        momentum=params["momentum_teacher"],
        student_temp=params["student_temp"],
        warmup_teacher_temp=params["warmup_teacher_temp"],
        teacher_temp=params["teacher_temp"],
        warmup_teacher_patch_temp=params["warmup_teacher_patch_temp"],
        teacher_patch_temp=params["teacher_patch_temp"],
        warmup_teacher_temp_epochs=params["warmup_teacher_temp_epochs"],
        center_momentum=params["center_momentum"],
        patch_center_momentum=params["center_momentum_patch"],
        local_views=params["local_crops"],
        local_size=params["local_size"],
    )
