import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from asterism.errors import UserError
from asterism.methods.dino import Dino, DinoConfig
from asterism.ops import collectives
from asterism.types import Batch, Progress
from tests.distributed import run
from tests.methods.batches import TINY, random_batch, rows

CONFIG = DinoConfig(out_dim=24, hidden_dim=16, bottleneck_dim=8, local_views=2, local_size=8, norm_last_layer=False)
PROGRESS = Progress(step=7, steps=40, steps_per_epoch=4)


def _dino(drop_path: float = 0.0) -> Dino:
    """A method whose student and teacher differ and whose centre is not zero, as in the middle of training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Dino(CONFIG, TINY.model_copy(update={"drop_path": drop_path}))
        with torch.no_grad():
            for parameter in (*method.backbone.parameters(), *method.head.parameters()):
                parameter.add_(0.05 * torch.randn_like(parameter))
            method.center.value.normal_(std=0.1)
    return method


def _slow_loss(method: Dino, batch: Batch, teacher_temp: float) -> Tensor:
    total, pairs = torch.zeros(()), 0
    for i in (0, 1):
        teacher = method.teacher_head.network(method.teacher_backbone.network(batch.views[i].pixels).cls).detach()
        target = torch.softmax((teacher - method.center.value) / teacher_temp, dim=1)
        for j, view in enumerate(batch.views):
            if i != j:
                student = method.head(method.backbone(view.pixels).cls)
                total = total - (target * torch.log_softmax(student / 0.1, dim=1)).sum(dim=1).mean()
                pairs += 1
    assert pairs == 2 * len(batch.views) - 2
    return total / pairs


def test_loss_and_gradient_are_those_of_the_slow_loop() -> None:
    method = _dino()
    batch = random_batch(method, 3)
    trained = [p for p in method.parameters() if p.requires_grad]
    temperature = 0.04 + (0.07 - 0.04) * 1 / 29  # epoch 1 of a warm-up of 30
    expected = _slow_loss(method, batch, temperature)
    ours = method.loss(batch, PROGRESS).total
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0)
    for own, slow in zip(torch.autograd.grad(ours, trained), torch.autograd.grad(expected, trained), strict=True):
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-6)


def test_nothing_flows_to_the_teacher_and_everything_else_learns() -> None:
    method = _dino()
    method.loss(random_batch(method, 2), PROGRESS).total.backward()
    with_gradient = {name for name, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    students = {name for name, _ in method.named_parameters() if not name.startswith("teacher")}
    assert with_gradient == students


def test_micro_batches_update_teacher_and_centre_once_and_as_one_batch() -> None:
    whole, split = _dino(), _dino()
    batch = random_batch(whole, 4)
    before = whole.teacher_head.network.mlp[0].weight.clone()
    whole.loss(batch, PROGRESS)
    losses = [split.loss(rows(batch, part), PROGRESS).total for part in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(torch.stack(losses).mean(), whole.loss(batch, PROGRESS).total)
    whole.center._pending = whole.center._pending / 2  # the loss was taken twice
    assert split.center.value.equal(whole.center.value), "losses leave the centre alone"
    for method in (whole, split):
        method.after_update(PROGRESS)
    torch.testing.assert_close(split.center.value, whole.center.value)
    assert all(a.equal(b) for a, b in zip(split.parameters(), whole.parameters(), strict=True))

    momentum = 1 - (1 - 0.996) * (math.cos(math.pi * 7 / 40) + 1) / 2
    expected = momentum * before + (1 - momentum) * whole.head.mlp[0].weight
    torch.testing.assert_close(whole.teacher_head.network.mlp[0].weight, expected)


def test_the_centre_follows_raw_teacher_logits() -> None:
    method = _dino()
    batch = random_batch(method, 3)
    old = method.center.value.clone()
    logits = [method.teacher_head(method.teacher_backbone(view.pixels).cls) for view in batch.views[:2]]
    method.loss(batch, PROGRESS)
    method.after_update(PROGRESS)
    torch.testing.assert_close(method.center.value, 0.9 * old + 0.1 * torch.cat(logits).mean(dim=0))


def test_dropped_paths_depend_on_the_image_not_on_its_batch() -> None:
    method = _dino(drop_path=0.5)
    batch = random_batch(method, 4)
    whole = method.loss(batch, PROGRESS).total
    parts = [method.loss(rows(batch, slice(i, i + 1)), PROGRESS).total for i in range(4)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    torch.testing.assert_close(_dino().loss(batch, PROGRESS).embeddings, method.loss(batch, PROGRESS).embeddings)
    assert not torch.allclose(_dino().loss(batch, PROGRESS).total, whole), "the student drops paths"


def test_each_view_drops_paths_of_its_own() -> None:
    method = _dino(drop_path=0.5)
    batch = random_batch(method, 4)
    same = replace(batch, views=(batch.views[0], batch.views[0], *batch.views[2:]))
    tokens: list[Tensor] = []
    method.head.register_forward_pre_hook(lambda _, arguments: tokens.append(arguments[0]))
    method.loss(same, PROGRESS)
    assert not torch.allclose(tokens[0][0], tokens[0][1])


def test_the_last_layer_waits_for_the_first_epochs_to_pass() -> None:
    method = _dino()
    last = set(method.head.last_layer.parameters())
    assert set(method.frozen(Progress(3, 40, steps_per_epoch=4))) == last
    assert set(method.frozen(Progress(4, 40, steps_per_epoch=4))) == set()


def test_metrics_tell_a_collapse_from_learning() -> None:
    method = _dino()
    losses = method.loss(random_batch(method, 3), PROGRESS)
    metrics = losses.metrics
    assert method.uniform_terms == {"dino": math.log(24)}
    assert 0 < metrics["target_entropy"] < math.log(24)
    assert 0 < metrics["prediction_entropy"] <= math.log(24) + 1e-5
    torch.testing.assert_close(metrics["kl"] + metrics["target_entropy"], losses.total.detach())
    torch.testing.assert_close(metrics["center_norm"], method.center.value.norm())
    assert not any(value.requires_grad for value in metrics.values())
    assert losses.embeddings.shape == (3, 32)


def test_views_follow_the_backbone_unless_they_are_given() -> None:
    own = Dino(CONFIG.model_copy(update={"local_size": None, "local_views": 3}), TINY).views
    assert [view.size for view in own] == [16, 16, 8, 8, 8]  # 16 · 3/7 in patches of 4
    assert [view.blur for view in own] == [1.0, 0.1, 0.5, 0.5, 0.5]
    assert [view.solarize for view in own] == [0.0, 0.2, 0.0, 0.0, 0.0]
    assert [view.scale for view in own[1:3]] == [CONFIG.global_scale, CONFIG.local_scale]
    given = Dino(CONFIG.model_copy(update={"global_size": 32, "local_size": 12}), TINY).views
    assert [view.size for view in given] == [32, 32, 12, 12]


def test_a_whole_state_gives_the_same_loss_and_encoder() -> None:
    method = _dino()
    torch.manual_seed(5)
    other = Dino(CONFIG, TINY)
    other.load_state_dict(method.state_dict())
    batch = random_batch(method, 2)
    assert other.loss(batch, PROGRESS).total == method.loss(batch, PROGRESS).total
    assert other.encoder().backbone is other.teacher_backbone.network


def test_loaded_weights_reach_the_teacher() -> None:
    method = _dino()
    method.backbone_was_loaded()
    pairs = zip(method.backbone.parameters(), method.teacher_backbone.network.parameters(), strict=True)
    assert all(a.equal(b) for a, b in pairs)


def test_half_precision_keeps_the_loss_in_full() -> None:
    method = _dino()
    with torch.autocast("cpu", torch.bfloat16):
        loss = method.loss(random_batch(method, 2), PROGRESS).total
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, method.loss(random_batch(method, 2), PROGRESS).total, rtol=0.05, atol=0)


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="student_temp = 0"):
        DinoConfig.parse({"student_temp": 0})
    with pytest.raises(UserError, match="views of 10 pixels do not divide into patches of 4"):
        Dino(CONFIG.model_copy(update={"local_size": 10}), TINY)


def _half_of_the_batch() -> tuple[Tensor, Tensor]:
    method = _dino()
    rank = collectives.rank()
    loss = method.loss(rows(random_batch(method, 4), slice(2 * rank, 2 * rank + 2)), PROGRESS).total
    method.after_update(PROGRESS)
    return loss.detach(), method.center.value


def test_two_processes_do_what_one_does() -> None:
    method = _dino()
    loss = method.loss(random_batch(method, 4), PROGRESS).total.detach()
    method.after_update(PROGRESS)
    results = run(_half_of_the_batch)
    torch.testing.assert_close(torch.stack([part for part, _ in results]).mean(), loss)
    for _, center in results:
        torch.testing.assert_close(center, method.center.value)
