"""Whole runs: resume, processes, prediction, evaluation, report and export, through the public interface."""

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import asterism
from asterism.errors import Interrupted
from asterism.finetuning.learner import FineTuned
from asterism.finetuning.recipe import FinetuneRecipe
from tests.finetuning.segmentation.drawn import drawn, drawn_folder
from tests.finetuning.segmentation.tiny_heads import SMALL
from tests.finetuning.tiny import assert_two_processes_equal_one, finetune, resume, tiny


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_folder(tmp_path_factory.mktemp("drawn") / "shapes")


def recipe(data: Path | str, head: str, *changes: str) -> FinetuneRecipe:
    small = [f"head.{key}={value}" for key, value in SMALL[head].items()]
    return tiny(data, f"head={head}", *small, "trainer.batch_size=4", "optim.warmup_epochs=0", *changes, task="segment")


def losses(run: Any) -> list[float]:
    return [record["loss"] for record in run.metrics() if "loss" in record]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """The mask transformer after enough steps to distinguish the colours."""
    long = ["trainer.steps=40", "optim.lr=3e-3", "validation.every_epochs=10"]
    settings = [*long, "task.augmentation.photometric=false"]
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    return finetune(recipe(data, "mask-transformer", *settings), folder).path


def test_it_learns_and_predicts_in_python(run: Path) -> None:
    model = asterism.load(run)
    image, mask = drawn(50, 30, 45)
    found = model.predict(image)
    assert found.names == ("background", "rectangle", "disc")
    assert found.mask.shape == mask.shape
    assert (found.mask.numpy() == mask).mean() > 0.7
    assert len(model.predict([image, image])) == 2


def test_predictions_are_files_for_programs_and_pictures_for_people(run: Path, data: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    (new / "inner").mkdir(parents=True)
    for path in (new / "a.png", new / "a.bmp", new / "inner" / "b.png"):
        Image.fromarray(drawn(60, 20, 50)[0]).save(path)
    made = asterism.predict(run, new, tmp_path / "out")
    masks = sorted(path.relative_to(made.folder).as_posix() for path in (made.folder / "masks").rglob("*.png"))
    assert masks == ["masks/a.png", "masks/a.png.png", "masks/inner/b.png"]
    expected = asterism.load(run).predict(drawn(60, 20, 50)[0])
    with Image.open(made.folder / "masks" / "inner" / "b.png") as image:
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), expected.mask.numpy())
    content = json.loads((made.folder / "predictions.json").read_text(encoding="utf-8"))
    assert [each["class"] for each in content["classes"]] == ["background", "rectangle", "disc"]
    assert {row["mask"] for row in content["images"]} == set(masks)
    rows = list(csv.DictReader((made.folder / "predictions.csv").read_text(encoding="utf-8").splitlines()))
    areas = {row["class"]: int(row["pixels"]) for row in rows if row["image"] == "inner/b.png"}
    assert areas == {name: round(1000 * share) for name, share in expected.areas.items()}
    assert len(list((made.folder / "drawings").iterdir())) == 3


def test_the_metric_is_that_of_the_predictions(run: Path, data: Path) -> None:
    values = asterism.evaluate(run, data=data)["task"].values
    model, right, total = asterism.load(run), 0, 0
    for number in range(12):
        image, mask = drawn(number, 24 + number % 3, 32)
        right += int((model.predict(image).mask.numpy() == mask).sum())
        total += mask.size
    assert values["aacc"] == pytest.approx(100 * right / total)
    assert set(values) == {"miou", "macc", "aacc", "iou/background", "iou/rectangle", "iou/disc"}


def test_the_report_has_classes_and_worst_cases(run: Path) -> None:
    page = asterism.report(run).read_text(encoding="utf-8")
    assert "most often taken for" in page
    assert "Worst cases" in page
    assert "rectangle" in page


@pytest.mark.parametrize("head", SMALL)
def test_resuming_is_exact(data: Path, tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe(data, head, "checkpoint.every_steps=2", "trainer.steps=4")
    whole, loss = finetune(config, tmp_path / "whole"), FineTuned.loss

    def stopped(self: Any, batch: Any, progress: Any) -> Any:
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(self, batch, progress)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuned, "loss", stopped)
        with pytest.raises(Interrupted):
            finetune(config, tmp_path / "parts")
    parts = resume(tmp_path / "parts")
    assert losses(parts) == losses(whole)
    assert parts.model.read_bytes() == whole.model.read_bytes()


def train_all(folder: str, data: str, strategy: str) -> dict[str, tuple[list[float], dict[str, Tensor]]]:
    """Losses, held-out values and kept weights of every head, trained with all processes of the group."""
    found = {}
    for head in SMALL:
        made = finetune(
            # AdamW would turn rounding errors of vanishing gradients, as of biases before batch norm, into whole steps.
            recipe(
                data,
                head,
                f"trainer.strategy={strategy}",
                "trainer.steps=3",
                "source.drop_path=0.3",
                "optim.name=sgd",
                "task.start=fresh",  # a probe's line searches turn rounding errors of other thread counts into more
            ),
            Path(folder) / head,
        )
        kept = ("loss", "held_out/miou", "held_out/aacc")
        values = [record[key] for record in made.metrics() for key in kept if key in record]
        found[head] = (values, load_file(made.model))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_equal_one(tmp_path: Path, data: Path, strategy: str) -> None:
    assert_two_processes_equal_one(train_all, tmp_path, data, strategy)
