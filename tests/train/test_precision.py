"""Half precision: close to float32, and a float16 run leaves out steps that overflow and resumes exactly."""

import shutil
from pathlib import Path

import pytest

from asterism.train import checkpoint
from tests.train.tiny import pretrain, resume, tiny_recipe


@pytest.mark.slow
def test_a_float16_run_resumes_exactly(tmp_path: Path) -> None:
    recipe = tiny_recipe("dino", trainer={"precision": "fp16", "steps": 24}, checkpoint={"every_steps": 20})
    run = pretrain(recipe, tmp_path / "run")
    whole = checkpoint.read(run.checkpoints)
    assert float(whole.optimizer["loss_scale.factor"]) < 2.0**16  # the first steps overflow, and are left out
    assert any(name.endswith("exp_avg") for name in whole.optimizer)
    assert all(value.isfinite().all() for value in whole.method.values())
    shutil.rmtree(run.checkpoints / "step-00000024")
    again = checkpoint.read(resume(run.path).checkpoints)
    assert all(value.equal(whole.method[name]) for name, value in again.method.items())
    assert all(value.equal(whole.optimizer[name]) for name, value in again.optimizer.items())


@pytest.mark.slow
def test_half_precision_is_close_to_float32(tmp_path: Path) -> None:
    losses = {}
    for precision in ("32", "bf16", "fp16"):
        recipe = tiny_recipe("mae", optim={"lr": 0.0}, trainer={"precision": precision, "steps": 2})
        losses[precision] = [record["loss"] for record in pretrain(recipe, tmp_path / precision).metrics()]
    assert losses["fp16"] == pytest.approx(losses["32"], rel=1e-2)
    assert losses["bf16"] == pytest.approx(losses["32"], rel=2e-2)
