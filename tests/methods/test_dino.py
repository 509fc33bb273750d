import math
from dataclasses import replace

import torch
from torch import Tensor

from asterism.methods.dino import Dino, DinoConfig
from asterism.types import Batch, Progress
from tests.methods.batches import TINY, random_batch

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


def test_centre_and_teacher_follow_once_per_step() -> None:
    method = _dino()
    batch = random_batch(method, 3)
    old, before = method.center.value.clone(), method.teacher_head.network.mlp[0].weight.clone()
    logits = [method.teacher_head(method.teacher_backbone(view.pixels).cls) for view in batch.views[:2]]
    method.loss(batch, PROGRESS)
    method.after_update(PROGRESS)
    torch.testing.assert_close(method.center.value, 0.9 * old + 0.1 * torch.cat(logits).mean(dim=0))
    momentum = 1 - (1 - 0.996) * (math.cos(math.pi * 7 / 40) + 1) / 2
    expected = momentum * before + (1 - momentum) * method.head.mlp[0].weight
    torch.testing.assert_close(method.teacher_head.network.mlp[0].weight, expected)


def test_each_view_drops_different_paths() -> None:
    method = _dino(drop_path=0.5)
    batch = random_batch(method, 4)
    same = replace(batch, views=(batch.views[0], batch.views[0], *batch.views[2:]))
    tokens: list[Tensor] = []
    method.head.register_forward_pre_hook(lambda _, arguments: tokens.append(arguments[0]))
    method.loss(same, PROGRESS)
    assert not torch.allclose(tokens[0][0], tokens[0][1])


def test_the_last_layer_is_frozen_in_the_first_epochs() -> None:
    method = _dino()
    last = set(method.head.last_layer.parameters())
    assert set(method.frozen(Progress(3, 40, steps_per_epoch=4))) == last
    assert set(method.frozen(Progress(4, 40, steps_per_epoch=4))) == set()


def test_view_sizes_follow_the_backbone_by_default() -> None:
    own = Dino(CONFIG.model_copy(update={"local_size": None, "local_views": 3}), TINY).views
    assert [view.size for view in own] == [16, 16, 8, 8, 8]  # 16 · 3/7 in patches of 4
    assert [view.blur for view in own] == [1.0, 0.1, 0.5, 0.5, 0.5]
    assert [view.solarize for view in own] == [0.0, 0.2, 0.0, 0.0, 0.0]
    assert [view.scale for view in own[1:3]] == [CONFIG.global_scale, CONFIG.local_scale]
    given = Dino(CONFIG.model_copy(update={"global_size": 32, "local_size": 12}), TINY).views
    assert [view.size for view in given] == [32, 32, 12, 12]
