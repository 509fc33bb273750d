"""The first steps of a small network improve its features. `benchmarks/first_steps.py` measures all methods."""

from __future__ import annotations

from pathlib import Path

import pytest

import asterism

STEPS = 200
# MaSSL, SOVE and CrIBo rise too, and are left out for the time they take. iBOT does not move in so few steps, and the
# two methods that reconstruct pixels (MAE, STELLAR) first fall: docs/training.md has all numbers.
METHODS = ("dino", "sop", "flsl")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_200_steps_on_cifar10_raise_knn_and_keep_the_rank(method: str, real_data: Path, tmp_path: Path) -> None:
    run = asterism.pretrain(
        recipe=f"{method}-cifar10",
        data=real_data / "cifar10",
        out=tmp_path / "run",
        overrides=[
            "backbone.patch_size=8",
            f"trainer.steps={STEPS}",
            "trainer.devices=1",
            "data.workers=0",
            "optim.warmup_epochs=0.03",
            # The encoder is the teacher, which with a momentum of 0.99 would still be close to the untrained network.
            f"method.momentum={1 - 10 / STEPS}",
            "monitor.knn.every_epochs=100",
            "monitor.knn.bank=8000",
            "monitor.knn.queries=2000",
            "monitor.tensorboard=false",
        ],
    )
    records = run.metrics()
    before, *_, after = (record["knn"] for record in records if "knn" in record)
    first, *_, last = (record["effective_rank"] for record in records if "effective_rank" in record)
    assert after > before
    assert last > 0.6 * first
    assert not any("warning" in record for record in records)
