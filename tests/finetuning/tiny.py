"""The smallest sensible runs of fine-tuning: one block, 24-pixel images, a few steps."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from asterism.finetuning.opening import FINETUNING
from asterism.finetuning.recipe import FinetuneRecipe, load_finetune_recipe
from asterism.finetuning.task import Start
from asterism.nn.backbone import BackboneConfig, build_backbone
from asterism.train import engine
from tests import distributed
from tests.train.tiny import TEACHER

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 60), "red": (220, 30, 20)}
BACKBONE = BackboneConfig(name="vit_tiny_patch16_224", image_size=16, patch_size=8, dim=32, depth=3, heads=2)
SWIN = BackboneConfig(name="swin_tiny_patch4_window7_224", image_size=64, dim=256, window=2)


finetune, resume = partial(engine.start, FINETUNING), partial(engine.resume, FINETUNING)


def coloured_folder(folder: Path, images: int = 12, classes: Sequence[str] = tuple(COLOURS)) -> Path:
    """Images of one colour with noise, in one folder per class."""
    draw = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(images):
            noise = draw.integers(-20, 20, (20, 24, 3))
            pixels = np.clip(np.array(COLOURS.get(name, (128, 128, 128))) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def tiny(data: Path | str, *changes: str, task: str = "classify", source: Path | str = TEACHER) -> FinetuneRecipe:
    """A recipe of six steps on the data. A classifier starts from random weights: a probe would know the colours."""
    usual = (
        "data.workers=0 trainer.steps=6 trainer.batch_size=8 trainer.accelerator=cpu trainer.devices=1 "
        "monitor.log_every=1 monitor.tensorboard=false validation.share=0.25 validation.every_epochs=0.5"
    )
    fresh = ["task.start=fresh"] if task == "classify" else []
    overrides = [f"data.path={data}", *usual.split(), *fresh, *changes]
    return load_finetune_recipe(str(source), task=task, overrides=overrides)


def assert_two_processes_equal_one(
    train_all: Callable[[str, str, str], dict[str, tuple[list[float], dict[str, Tensor]]]],
    folder: Path,
    data: Path,
    strategy: str,
    rtol: float = 1e-3,
) -> None:
    """`train_all(folder, data, strategy)` gives what was logged and the kept weights of several runs, by name."""
    alone = train_all(str(folder / "alone"), str(data), "auto")
    words = (str(folder / "together"), str(data), strategy)
    together = distributed.run(distributed.launched, train_all, *words)[0]
    for name, (values, weights) in alone.items():
        assert together[name][0] == pytest.approx(values, rel=1e-5, abs=1e-5), name
        for key, value in weights.items():
            torch.testing.assert_close(together[name][1][key], value, rtol=rtol, atol=1e-5, msg=f"{name} {key}")


def start(config: BackboneConfig = BACKBONE, classes: int = 3, size: int = 16) -> Start:
    return Start(build_backbone(config), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), size, tuple(f"c{i}" for i in range(classes)))
