"""Two processes equal one, with DDP and FSDP2: losses, measurements, averaged weights and the model that is kept."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from tests.finetuning.tiny import assert_two_processes_equal_one, coloured_folder, finetune, tiny

CASES = {
    "classify": ("classify", ["optim.warmup_epochs=0", "source.drop_path=0.3"]),
    "probe": ("probe", ["task.learning_rates=[0.1, 1.0]"]),
}


def train_all(folder: str, data: str, strategy: str) -> dict[str, tuple[list[float], dict[str, Tensor]]]:
    """Records and kept weights of every case, trained with all processes of the group."""
    found = {}
    for name, (task, changes) in CASES.items():
        run = finetune(tiny(data, f"trainer.strategy={strategy}", *changes, task=task), Path(folder) / name)
        kept = ("loss", "held_out/top1", "gradient_norm")
        values = [record[key] for record in run.metrics() for key in kept if key in record]
        found[name] = (values, load_file(run.model))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_equal_one(tmp_path: Path, strategy: str) -> None:
    assert_two_processes_equal_one(train_all, tmp_path, coloured_folder(tmp_path / "data"), strategy)
