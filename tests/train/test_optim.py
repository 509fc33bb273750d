import math

import pytest
import torch
from torch import nn

from asterism.train.optim import OptimConfig, build_optimizer, clip_gradients, learning_rate, set_schedules
from asterism.types import Progress


def make_module():
    module = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    module[2].weight.requires_grad_(False)
    module.scale = nn.Parameter(torch.ones(()))
    return module


def test_only_matrices_decay_and_frozen_parameters_are_left_out():
    module = make_module()
    decayed, free = build_optimizer(module, OptimConfig()).param_groups
    assert decayed["params"] == [module[0].weight]
    assert {id(p) for p in free["params"]} == {
        id(p) for p in (module[0].bias, module[1].weight, module[1].bias, module[2].bias, module.scale)
    }


def test_schedules_of_a_step():
    module = make_module()
    config = OptimConfig(lr=1e-3, min_lr=1e-5, warmup_epochs=2, weight_decay=0.04, weight_decay_end=0.4)
    optimizer = build_optimizer(module, config)
    peak = 1e-3 * 512 / 256
    at = lambda step: set_schedules(optimizer, config, Progress(step, 100, 10), 512)  # noqa: E731
    assert at(0) == 0
    assert at(19) == pytest.approx(peak)
    assert at(20) == pytest.approx(peak)
    assert at(60) == pytest.approx(1e-5 + (peak - 1e-5) / 2)
    at(50)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [pytest.approx(0.22), 0.0]
    unscaled = OptimConfig(lr=1e-3, lr_scaling="none", warmup_epochs=0)
    assert set_schedules(optimizer, unscaled, Progress(0, 100, 10), 512) == pytest.approx(1e-3)


def test_everything_decays_if_configured():
    module = make_module()
    decayed, free = build_optimizer(module, OptimConfig(decay="all")).param_groups
    assert {id(p) for p in decayed["params"]} == {id(p) for p in module.parameters() if p.requires_grad}
    assert free["params"] == []


@pytest.mark.parametrize(("first_peak", "ramp"), [("last", [0, 1 / 3, 2 / 3, 1]), ("next", [0, 1 / 4, 2 / 4, 3 / 4])])
def test_the_warm_up_ends_at_its_peak_or_before_it(first_peak, ramp):
    config = OptimConfig(lr=1.0, lr_scaling="none", min_lr=0, warmup_epochs=2, warmup_peak=first_peak)
    rates = [learning_rate(config, Progress(step, 8, 2), 512) for step in range(8)]
    assert rates == pytest.approx([*ramp, *[(1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]])
    constant = config.model_copy(update={"schedule": "constant"})
    assert [learning_rate(constant, Progress(step, 8, 2), 512) for step in range(8)] == pytest.approx([*ramp, *[1] * 4])


def gradients(module):
    for i, parameter in enumerate(p for p in module.parameters() if p.requires_grad):
        parameter.grad = torch.full_like(parameter, float(i + 1))
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def test_clip_per_tensor_follows_its_formula():
    module = make_module()
    before = gradients(module)
    total = clip_gradients(module.parameters(), OptimConfig(clip=3.0))
    for old, parameter in zip(before, (p for p in module.parameters() if p.grad is not None), strict=True):
        factor = 3.0 / (old.norm() + 1e-6)
        torch.testing.assert_close(parameter.grad, old * factor if factor < 1 else old)
    assert total == pytest.approx(math.sqrt(sum(float(g.norm()) ** 2 for g in before)))


def test_global_clip_keeps_the_direction_and_zero_disables_it():
    module = make_module()
    before = gradients(module)
    total = clip_gradients(module.parameters(), OptimConfig(clip=1.0, clip_by="global"))
    after = [p.grad for p in module.parameters() if p.grad is not None]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old / (total + 1e-6))
    before = gradients(module)
    clip_gradients(module.parameters(), OptimConfig(clip=0))
    for old, parameter in zip(before, (p for p in module.parameters() if p.grad is not None), strict=True):
        assert torch.equal(old, parameter.grad)


def test_warm_up_as_a_share_of_the_run():
    config = OptimConfig(lr=1e-3, lr_scaling="none", warmup_share=0.1)
    assert learning_rate(config, Progress(0, 50, 1000), 64) == 0
    assert learning_rate(config, Progress(4, 50, 1000), 64) == pytest.approx(1e-3)
    assert learning_rate(config, Progress(30, 50, 1000), 64) < 1e-3
