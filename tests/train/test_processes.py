"""Two processes give the same losses as one, for every method, with DDP and FSDP."""

from pathlib import Path

import pytest

from tests import distributed
from tests.train.tiny import METHODS, pretrain, tiny_recipe


def train_all(folder: str, strategy: str, methods: list[str], steps: int) -> dict[str, list[float]]:
    """Losses of every method, trained with all processes of the group."""
    losses = {}
    for method in methods:
        recipe = tiny_recipe(method, trainer={"steps": steps, "strategy": strategy})
        run = pretrain(recipe, Path(folder) / method)
        losses[method] = [record["loss"] for record in run.metrics()]
    return losses


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    return train_all(str(tmp_path_factory.mktemp("alone")), "auto", sorted(METHODS), 6)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path, alone: dict[str, list[float]]) -> None:
    together, _ = distributed.run(distributed.launched, train_all, str(tmp_path), "ddp", sorted(METHODS), 6)
    for method, expected in alone.items():
        assert together[method] == pytest.approx(expected, rel=1e-5, abs=1e-5), method


@pytest.mark.slow
def test_sharded_parameters_equal_whole_ones(tmp_path: Path, alone: dict[str, list[float]]) -> None:
    together, _ = distributed.run(distributed.launched, train_all, str(tmp_path), "fsdp", sorted(METHODS), 6)
    for method, expected in alone.items():
        assert together[method] == pytest.approx(expected, rel=1e-5, abs=1e-5), method
