"""The effect of the first steps on the features, on photographs. `lab/benchmarks/first_steps.py` has all methods."""

from pathlib import Path
from typing import Any

import pytest

from asterism.train.recipe import load_recipe
from tests.train.tiny import pretrain

SHORT = [
    *["trainer.accelerator=cpu", "trainer.devices=1", "data.workers=0"],
    *["monitor.tensorboard=false", "monitor.knn.every_epochs=100"],
]


def records(recipe: str, out: Path, data: Path, *changes: str) -> list[dict[str, Any]]:
    return pretrain(load_recipe(recipe, [f"data.path={data / 'cifar10'}", *SHORT, *changes]), out).metrics()


def ends(records: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """The first and the last value."""
    values = [record[name] for record in records if name in record]
    return values[0], values[-1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dino", "ibot", "mae"])
def test_200_steps_raise_knn_and_keep_the_rank(method: str, real_data: Path, tmp_path: Path) -> None:
    """Of the nine methods, which all rise (lab/training.md), DINO, and two of the three that rise only with Muon."""
    # With a momentum of 0.99 the teacher, which is the encoder, would still be close to its start.
    following = ["method.momentum=0.95"] if method in ("dino", "ibot") else []
    length = "trainer.steps=200 optim.warmup_epochs=0.03 monitor.knn.bank=8000 monitor.knn.queries=2000"
    found = records(f"{method}-cifar10", tmp_path / "run", real_data, *length.split(), *following)
    before, after = ends(found, "knn")
    assert after > before
    first, last = ends(found, "effective_rank")
    assert last > 0.6 * first
    assert not any("warning" in record for record in found)
