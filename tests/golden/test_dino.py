from pathlib import Path

import pytest
import torch

from asterism.nn.center import Center
from asterism.nn.heads import PrototypeHead
from asterism.ops.losses import cross_view_loss, soft_targets
from asterism.ops.schedules import ramp_per_epoch
from asterism.types import Progress
from tests.golden.vectors import Vectors, read, relative_error


@pytest.fixture(scope="module")
def loss(golden: Path) -> Vectors:
    return read(golden / "dino" / "loss.npz")


@pytest.fixture(scope="module")
def head(golden: Path) -> Vectors:
    return read(golden / "dino" / "head.npz")


def test_loss_and_gradient(loss: Vectors) -> None:
    params = loss.params
    rows = loss["in_student_logits"].clone().requires_grad_()
    student = rows.unflatten(0, (params["num_views"], params["batch"]))
    teacher = loss["in_teacher_logits"].unflatten(0, (params["num_global_views"], params["batch"]))
    targets = soft_targets(teacher, loss["in_center"][0], params["teacher_temp"])
    ours = cross_view_loss(targets, student, params["student_temp"])
    ours.backward()
    assert relative_error(ours, loss["out_loss"]) <= params["tolerance"]
    assert relative_error(rows.grad, loss["out_grad_student_logits"]) <= params["tolerance"]


def test_center(loss: Vectors) -> None:
    center = Center(loss["in_center"].shape[1], loss.params["center_momentum"])
    center.value.copy_(loss["in_center"][0])
    center.accumulate(loss["in_teacher_logits"])
    center.update()
    assert relative_error(center.value, loss["out_center"][0]) <= loss.params["tolerance"]


def test_teacher_temperature(loss: Vectors) -> None:
    params = loss.params
    ours = [
        ramp_per_epoch(
            Progress(epoch, params["epochs"], steps_per_epoch=1),
            params["warmup_epochs"],
            params["warmup_teacher_temp"],
            params["teacher_temp_final"],
        )
        for epoch in range(params["epochs"])
    ]
    assert relative_error(torch.tensor(ours), loss["out_teacher_temp_schedule"]) <= params["tolerance"]
    assert ours[params["epoch"]] == pytest.approx(params["teacher_temp"], rel=1e-6)


def test_head(head: Vectors) -> None:
    params = head.params
    ours = PrototypeHead(
        params["in_dim"], params["out_dim"], params["hidden_dim"], params["bottleneck_dim"], params["layers"]
    )
    layers = params["layers"]
    state = {f"mlp.{2 * i}.{name}": head[f"in_{name[0]}{i}"] for i in range(layers) for name in ("weight", "bias")}
    ours.load_state_dict(state | {f"last_layer.weight_{part}": head[f"in_last_{part}"] for part in "gv"})
    x = head["in_x"].clone().requires_grad_()
    logits = ours(x)
    (logits * head["in_cotangent"]).sum().backward()
    assert relative_error(ours.project(x), head["out_bottleneck"]) <= params["tolerance"]
    assert relative_error(logits, head["out_logits"]) <= params["tolerance"]
    assert relative_error(x.grad, head["out_grad_x"]) <= params["tolerance"]
