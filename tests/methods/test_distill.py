import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from asterism.errors import UserError
from asterism.methods.distill import Distill, DistillConfig
from asterism.nn.weights.load import load_encoder
from asterism.reports import sections
from asterism.reports.pictures import open_look
from asterism.train.optim import build_optimizer
from asterism.train.recipe import Recipe
from asterism.types import Batch, Progress
from tests.methods.batches import TINY, random_batch, rows
from tests.train.tiny import TEACHER, pretrain, resume, tiny_recipe

PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)
QUEUE = {"size": 6, "teacher_temp": 0.1, "student_temp": 0.3}


def _distill(**changes: Any) -> Distill:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Distill(DistillConfig.parse({"teacher": str(TEACHER), **changes}), TINY)
        with torch.no_grad():
            for parameter in method.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    method.mean, method.std = (0.3, 0.4, 0.5), (0.5, 0.4, 0.3)
    return method


def _standardised(target: Tensor) -> Tensor:
    mean = sum(target) / len(target)
    variance = sum((value - mean) ** 2 for value in target) / (len(target) - 1)
    return (target - mean) / (variance + 1e-6) ** 0.5


def _distance(s: Tensor, t: Tensor, settings: dict[str, Any]) -> Tensor:
    if settings.get("scale") == "standardised":
        t = _standardised(t)
    if settings.get("distance") == "mse":
        return sum((a - b) ** 2 for a, b in zip(s, t, strict=True)) / len(s)
    return 1 - sum(a * b for a, b in zip(s, t, strict=True)) / (s.norm() * t.norm())


def _at_student_place(patches: Tensor, place: int) -> Tensor:
    """The teacher's 3 × 3 patches at a place of the student's 4 × 4, by bilinear interpolation."""
    total: Any = 0
    (y, x) = (min(max((p + 0.5) * 3 / 4 - 0.5, 0), 2) for p in divmod(place, 4))
    for row in range(3):
        for column in range(3):
            share = max(0, 1 - abs(y - row)) * max(0, 1 - abs(x - column))
            total = total + share * patches[3 * row + column]
    return total


def _slow_loss(method: Distill, batch: Batch, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Image by image, token by token, with the teacher loaded separately."""
    teacher = load_encoder(TEACHER)
    found: dict[str, list[Tensor]] = {"cls": [], "patches": [], "queue": []}
    for pixels in batch.views[0].pixels:
        image = torch.stack([pixels[c] * method.std[c] + method.mean[c] for c in range(3)])
        large = F.interpolate(image[None], (24, 24), mode="bicubic", antialias=True).clamp(0, 1)
        with torch.no_grad():
            target = teacher.backbone(teacher.normalise(large))
        student = method.backbone(pixels[None])
        t, s = target.cls[0], None
        if method.cls_head is not None:
            s = method.cls_head(student.cls[0])
        if settings["cls"] is not None:
            found["cls"].append(_distance(s, t, settings["cls"]))
        if settings["patches"] is not None:
            for place in range(16):
                predicted = method.patch_head(student.patches[0, place])
                wanted = _at_student_place(target.patches[0], place)
                found["patches"].append(_distance(predicted, wanted, settings["patches"]) / 16)
        if settings["queue"] is not None:
            z, y = t / t.norm(), s / s.norm()
            q = [*method.queue.rows] + ([z] if settings["queue"].get("own_target", True) else [])
            p_t = torch.stack([row @ z for row in q]).div(0.1).softmax(0)
            log_p_s = torch.stack([row @ y for row in q]).div(0.3).log_softmax(0)
            found["queue"].append(-(p_t * log_p_s).sum())
    return {name: torch.stack(values).sum() / len(batch.keys) for name, values in found.items() if values}


@pytest.mark.parametrize(
    "settings",
    [
        {"cls": {}, "patches": {}, "queue": QUEUE},
        {"cls": {"distance": "mse", "weight": 0.5}, "patches": {"distance": "mse"}, "queue": None},
        {"cls": {"scale": "standardised"}, "patches": {"distance": "mse", "scale": "standardised"}, "queue": None},
        {"cls": None, "patches": None, "queue": QUEUE | {"own_target": False, "weight": 3.0}},
    ],
)
def test_losses_and_gradients_are_those_of_the_slow_loop(settings: dict[str, Any]) -> None:
    method = _distill(**settings)
    batch = random_batch(method, 3)
    trained = list(method.parameters())
    ours, expected = method.loss(batch, PROGRESS), _slow_loss(method, batch, settings)
    assert set(ours.terms) == set(expected)
    total = torch.zeros(())
    for name, value in expected.items():
        torch.testing.assert_close(ours.terms[name], value, rtol=1e-5, atol=1e-6)
        total = total + (settings[name] or {}).get("weight", 1.0) * value
    torch.testing.assert_close(ours.total, total, rtol=1e-5, atol=1e-6)
    pairs = zip(torch.autograd.grad(ours.total, trained), torch.autograd.grad(total, trained), strict=True)
    for own, slow in pairs:
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-6)


def test_the_teacher_is_neither_trained_nor_saved() -> None:
    method = _distill(queue=QUEUE)
    before = {name: tensor.clone() for name, tensor in method.teacher.encoder.state_dict().items()}
    optimizer = build_optimizer(method, tiny_recipe().optim)
    method.train()
    for step in range(2):
        method.loss(random_batch(method, 3, seed=step), PROGRESS).total.backward()
        optimizer.step()
        method.after_update(PROGRESS)
    assert not method.teacher.encoder.training
    theirs = {id(parameter) for parameter in method.teacher.encoder.parameters()}
    assert not theirs & {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert not theirs & {id(parameter) for parameter in method.parameters()}
    assert all(parameter.grad is None for parameter in method.teacher.encoder.parameters())
    for name, tensor in method.teacher.encoder.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    parts = {name.split(".")[0] for name in method.state_dict()}
    assert parts == {"backbone", "cls_head", "patch_head", "queue"}


def test_the_queue_takes_the_teachers_unit_vectors_after_the_step() -> None:
    method = _distill(queue=QUEUE)
    batch = random_batch(method, 4)
    old = method.queue.rows.clone()
    method.loss(rows(batch, slice(0, 2)), PROGRESS)
    method.loss(rows(batch, slice(2, 4)), PROGRESS)
    assert torch.equal(method.queue.rows, old), "both micro-batches are compared with the same rows"
    method.after_update(PROGRESS)
    image = batch.views[0].pixels * torch.tensor(method.std)[:, None, None] + torch.tensor(method.mean)[:, None, None]
    z = F.normalize(method.teacher(image).cls, dim=1)[batch.keys.argsort()]
    torch.testing.assert_close(method.queue.rows[:4], z)
    assert torch.equal(method.queue.rows[4:], old[4:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher": ""}, "teacher = ''"),
        ({"cls": None, "patches": None}, "at least one of method.cls, method.patches and method.queue"),
        ({"teacher": "none/at/all"}, "no such file or folder: none/at/all"),
        ({"teacher_options": {"head": 2}}, "unknown weights option 'head'"),
        ({"teacher_size": 20}, "image_size = 20 is not a multiple of the patch size 8"),
        ({"image_size": 18}, "method.image_size = 18 is not a multiple of the patch size 4"),
        ({"queue": {"teacher_temp": 0}}, "teacher_temp = 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Distill(DistillConfig.parse({"teacher": str(TEACHER), **settings}), TINY)


def test_a_run_is_resumed_with_the_same_teacher_only(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher.safetensors"
    shutil.copy(TEACHER, teacher)
    recipe = tiny_recipe("distill", method={"teacher": str(teacher)}, trainer={"steps": 2})
    run = pretrain(recipe, tmp_path / "run")
    last = run.checkpoints / "last"
    facts = json.loads((last / "state.json").read_text())
    assert list(facts["frozen_encoders"]) == ["method.teacher"]
    with safe_open(last / "method.safetensors", framework="pt") as file:
        assert not [name for name in file.keys() if name.startswith("teacher")]  # noqa: SIM118
    assert run.encoder().encode(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).cls.shape == (2, 32)

    other = load_encoder(teacher)
    moved = tmp_path / "moved.safetensors"
    teacher.rename(moved)
    with pytest.raises(UserError, match="no such file"):
        resume(run.path)
    recipe = Recipe.parse(run.config)
    note, views = sections.method_parts(run, recipe, open_look(run, recipe))
    assert "no such file" in note().body
    assert views() is None
    assert resume(run.path, (f"method.teacher={moved}",)).path == run.path

    with torch.no_grad():
        other.backbone.network.cls_token.add_(1e-3)
    other.save(teacher)
    with pytest.raises(UserError, match=r"method\.teacher = .* is not the network that the run was started with"):
        resume(run.path)
