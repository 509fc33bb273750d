"""Float16 training: the loss scale is exact, adapts, and survives a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from asterism.train import checkpoint
from asterism.train.loss_scale import LossScale
from asterism.train.start import pretrain, resume
from tests.train.tiny import tiny_recipe


def test_scaling_is_exact() -> None:
    scale, layer, x = LossScale(), nn.Linear(3, 2), torch.randn(5, 3)
    layer(x).square().sum().backward()
    expected = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    (layer(x).square().sum() * scale.factor).backward()
    scale.unscale(layer.parameters())
    assert all(torch.equal(p.grad, e) for p, e in zip(layer.parameters(), expected, strict=True) if p.grad is not None)


def test_an_overflow_halves_the_factor_and_many_good_steps_double_it() -> None:
    scale = LossScale()
    first = scale.factor
    assert not scale.accepts(False)
    assert scale.factor == first / 2
    assert all(scale.accepts(True) for _ in range(1999))
    assert scale.factor == first / 2
    assert scale.accepts(True)
    assert scale.factor == first
    other = LossScale()
    other.restore(scale.state())
    assert (other.factor, other.good) == (scale.factor, scale.good)


def test_gradients_that_no_factor_makes_finite_are_passed_on() -> None:
    scale = LossScale()
    while not scale.accepts(False):
        pass
    assert scale.factor < 2.0**-14


def test_a_float16_run_resumes_exactly(tmp_path: Path) -> None:
    recipe = tiny_recipe("dino", trainer={"precision": "fp16", "steps": 24}, checkpoint={"every_steps": 20})
    whole = pretrain(recipe, tmp_path / "whole")
    state = checkpoint.read(whole.checkpoints)
    assert float(state.optimizer["loss_scale.factor"]) < 2.0**16  # the first steps overflow, and are left out
    assert any(name.endswith("exp_avg") for name in state.optimizer)
    assert all(value.isfinite().all() for value in state.method.values())
    part = pretrain(recipe, tmp_path / "part")
    shutil.rmtree(part.checkpoints / "step-00000024")
    resume(tmp_path / "part")
    again = checkpoint.read(part.checkpoints)
    assert all(value.equal(state.method[name]) for name, value in again.method.items())


def test_half_precision_is_close_to_float32(tmp_path: Path) -> None:
    losses = {}
    for precision in ("32", "bf16", "fp16"):
        recipe = tiny_recipe("mae", optim={"lr": 0.0}, trainer={"precision": precision, "steps": 2})
        losses[precision] = [record["loss"] for record in pretrain(recipe, tmp_path / precision).metrics()]
    assert losses["fp16"] == pytest.approx(losses["32"], rel=1e-2)
    assert losses["bf16"] == pytest.approx(losses["32"], rel=2e-2)
