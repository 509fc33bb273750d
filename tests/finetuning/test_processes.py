"""Two processes equal one, with DDP and FSDP2: losses, measurements, averaged weights and the model that is kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests import distributed
from tests.finetuning.tiny import coloured_folder, finetune, tiny

CASES = {
    "classify": ("classify", ["optim.warmup_epochs=0", "source.drop_path=0.3"]),
    "probe": ("probe", ["task.learning_rates=[0.1, 1.0]"]),
}


def train_all(folder: str, data: str, strategy: str) -> dict[str, tuple[list[dict[str, float]], dict[str, Tensor]]]:
    """Records and kept weights of every case, trained with all processes of the group."""
    found = {}
    for name, (task, changes) in CASES.items():
        run = finetune(tiny(data, f"trainer.strategy={strategy}", *changes, task=task), Path(folder) / name)
        kept = ("loss", "held_out/top1", "gradient_norm")
        records = [{key: record[key] for key in kept if key in record} for record in run.metrics()]
        found[name] = (records, load_file(run.model))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_equal_one(tmp_path: Path, strategy: str) -> None:
    data = str(coloured_folder(tmp_path / "data"))
    alone = train_all(str(tmp_path / "alone"), data, "auto")
    together = distributed.run(distributed.launched, train_all, str(tmp_path / "together"), data, strategy)[0]
    for name, (records, weights) in alone.items():
        assert len(together[name][0]) == len(records)
        for ours, expected in zip(together[name][0], records, strict=True):
            assert ours == pytest.approx(expected, rel=1e-5, abs=1e-5), name
        for key, value in weights.items():
            torch.testing.assert_close(together[name][1][key], value, rtol=1e-3, atol=1e-5, msg=f"{name} {key}")
