"""Ten steps of facebookresearch/dino."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from asterism.methods.dino import Dino, DinoConfig
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

FILES = "dino*.npz"


def replay(path: Path) -> Iterator[Compared]:
    vectors = read(path)
    method, record = run(vectors, torch.float32)
    networks = Networks(method, {})
    yield from movement.first_step(vectors, record, networks)
    yield from movement.schedules(record, "out_teacher_temp")
    yield from movement.series(
        record, out_loss="loss", out_grad_norm="grad_norm", out_grad_norms="grad_norm", out_center="center"
    )
    yield from movement.snapshots(record)
    yield from movement.final_networks(vectors, networks)
    record.add("final_center", method.center.value)
    yield from movement.series(record, final_center="center")
    yield from movement.in_float64(run(vectors, torch.float64)[1])


def run(vectors: Vectors, dtype: torch.dtype) -> tuple[Dino, Recorder]:
    params = vectors.params
    method = Dino(config(params), backbone_config(params)).to(dtype)
    networks, record = Networks(method, {}), Recorder(vectors)
    assert not networks.unloaded(vectors)
    networks.load(vectors)
    outputs: dict[str, torch.Tensor] = {}
    for kind, head in (("student", method.head), ("teacher", method.teacher_head)):
        head.register_forward_hook(lambda _, __, out, kind=kind: outputs.__setitem__(kind, out.flatten(0, 1)))
    steps = train(
        method,
        optim_config(params, "adamw_betas"),
        params["steps"],
        progress_of(params),
        lambda progress: method.loss(batch_at(vectors, progress.step, dtype), progress),
        params["batch_size"],
    )
    for step in steps:
        if step.progress.step == 0:
            for kind, logits in outputs.items():
                record.add(f"out_step0_{kind}_out", logits)
            for name in params["grad_norm_names"]:
                record.add(f"out_step0_grad__{name}", step.gradients[networks.ours(name)])
        record.schedules(step, method)
        record.gradients(step, networks)
        record.add("out_loss", step.losses.total)
        record.add("out_center", method.center.value)
        movement.record_snapshots(record, networks)
    return method, record


def config(params: dict[str, Any]) -> DinoConfig:
    return DinoConfig(
        out_dim=params["out_dim"],
        hidden_dim=params["hidden_dim"],
        bottleneck_dim=params["bottleneck_dim"],
        norm_last_layer=params["norm_last_layer"],
        freeze_last_layer=params["freeze_last_layer"],
        momentum=params["momentum_teacher"],
        student_temp=params["student_temp"],
        warmup_teacher_temp=params["warmup_teacher_temp"],
        teacher_temp=params["teacher_temp"],
        warmup_teacher_temp_epochs=params["warmup_teacher_temp_epochs"],
        center_momentum=params["center_momentum"],
        local_views=params["local_crops"],
        local_size=params["local_size"],
    )
