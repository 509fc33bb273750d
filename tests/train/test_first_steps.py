"""The effect of the first steps on the features, on photographs. All methods, 200 steps: benchmarks/first_steps.py."""

from pathlib import Path
from typing import Any

import pytest

from asterism.train.recipe import load_recipe
from asterism.train.start import pretrain

SHORT = [
    "backbone.patch_size=8",
    "trainer.steps=40",
    "trainer.accelerator=cpu",
    "optim.warmup_epochs=0.01",
    "data.workers=0",
    "monitor.tensorboard=false",
    "monitor.knn.every_epochs=100",
    "monitor.knn.bank=1000",
    "monitor.knn.queries=500",
]


def records(out: Path, data: Path, *changes: str) -> list[dict[str, Any]]:
    return pretrain(load_recipe("dino-cifar10", [f"data.path={data / 'cifar10'}", *SHORT, *changes]), out).metrics()


@pytest.mark.slow
def test_a_narrow_network_keeps_its_rank_and_does_not_get_worse(tmp_path: Path, real_data: Path) -> None:
    own = records(tmp_path / "width", real_data)
    fixed = records(tmp_path / "timm", real_data, "backbone.init=timm", "optim.lr=1e-3")
    rank, fixed_rank = ([r["effective_rank"] for r in run if "effective_rank" in r][-1] for run in (own, fixed))
    assert rank > 2 * fixed_rank
    knn = [record["knn"] for record in own if "knn" in record]
    assert len(knn) == 2
    assert knn[1] > knn[0] - 1
    assert not any("warning" in record for record in own)
