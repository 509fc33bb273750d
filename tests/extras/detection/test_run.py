"""Whole runs of detection: exact resume, processes, predictions, evaluation, report and export."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import asterism
from asterism.finetuning.learner import FineTuned
from tests.extras.detection.drawn import HEADS, coco_file, detector
from tests.finetuning.tiny import assert_two_processes_equal_one, finetune, resume, tiny
from tests.train.tiny import Killed


def recipe(data: Path, head: str, *changes: str) -> Any:
    settings = [f"head.{name}={value}" for name, value in HEADS[head].items()]
    fixed = [f"head={head}", *settings, "trainer.batch_size=2", "trainer.steps=4", "validation.every_epochs=0.6"]
    return tiny(data, *fixed, *changes, task="detect")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coco_file(tmp_path_factory.mktemp("coco"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run with checkpoints at every second step."""
    return finetune(recipe(data, "mask-rcnn", "checkpoint.every_steps=2"), tmp_path_factory.mktemp("runs") / "whole")


@pytest.mark.parametrize("head", HEADS)
def test_resuming_equals_an_uninterrupted_run(
    run: Any, data: Path, tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed one step after a checkpoint, so that this step is repeated."""
    config = recipe(data, head, "checkpoint.every_steps=2")
    whole = run if head == "mask-rcnn" else finetune(config, tmp_path / "whole")
    loss = FineTuned.loss

    def killed(self: Any, batch: Any, progress: Any) -> Any:
        if progress.step == 3:
            raise Killed
        return loss(self, batch, progress)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuned, "loss", killed)
        with pytest.raises(Killed):
            finetune(config, tmp_path / "parts")
    again = resume(tmp_path / "parts")
    assert again.model.read_bytes() == whole.model.read_bytes()
    one, two = ([r["loss"] for r in each.metrics() if "loss" in r] for each in (whole, again))
    assert one == two


def test_predictions_are_files_and_pictures(run: Any, data: Path, tmp_path: Path) -> None:
    made = asterism.predict(run.path, data.parent, tmp_path / "out", device="cpu")
    assert made.images == 10
    content = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [category["name"] for category in content["categories"]] == ["square", "bar"]
    assert len(content["images"]) == 10
    assert {"bbox", "score", "segmentation", "category_id", "image_id"} <= content["annotations"][0].keys()
    assert len(list((tmp_path / "out" / "drawings").glob("*.jpg"))) == 10
    found = asterism.load(run.path).predict(Image.open(data.parent / "3.png"))
    assert found.masks.shape[1:] == (24, 32)
    assert found.boxes.shape == (len(found), 4)


def test_the_metric_and_the_report(run: Any, data: Path) -> None:
    (result,) = asterism.evaluate(run.path, data, device="cpu").values()
    assert {"AP", "AP50", "AP75", "mask_AP"} <= result.values.keys()
    assert "these are the images that the run was trained on" in result.notes[0]
    page = asterism.report(run.path).read_text()
    for title in ("Predictions and truth", "Worst cases", "Objects by class"):
        assert title in page


def test_an_object_is_drawn_where_it_is() -> None:
    task = detector("mask-rcnn")
    from tests.extras.detection.drawn import SAMPLES

    sample = SAMPLES[1]
    picture = task.drawing(sample.image, task.truth(sample))
    scale = picture.shape[1] // 32
    inside, outside = picture[:, 14 * scale, 15 * scale], picture[:, 30 * scale, 30 * scale]
    assert (inside.int() - sample.image[:, 14, 15].int()).abs().sum() > 25
    assert torch.equal(outside, sample.image[:, 30, 30])
    assert task.error(*[_as_found(task, sample), task.truth(sample)]) == 0


def _as_found(task: Any, sample: Any) -> Any:
    from asterism.extras.detection.objects import Detections

    truth = task.truth(sample)
    return Detections(
        truth.boxes, torch.ones(len(truth.labels)), truth.labels, truth.run_lengths, truth.names, truth.size
    )


def train_all(folder: str, data: str, strategy: str) -> dict[str, tuple[list[float], dict[str, torch.Tensor]]]:
    """Losses, held-out values and kept weights of every detector, trained with all processes of the group."""
    found = {}
    for head in HEADS:
        # AdamW would turn rounding errors of vanishing gradients into whole steps.
        changes = [f"trainer.strategy={strategy}", "optim.name=sgd", "optim.lr=0.01", "source.drop_path=0.3"]
        made = finetune(recipe(Path(data), head, "optim.warmup_epochs=0", *changes), Path(folder) / head)
        kept = ("loss", "gradient_norm", "held_out/AP", "held_out/AP50")
        values = [record[key] for record in made.metrics() for key in kept if key in record]
        found[head] = (values, load_file(made.model))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_of_two_processes_equals_one(tmp_path: Path, data: Path, strategy: str) -> None:
    assert_two_processes_equal_one(train_all, tmp_path, data, strategy, rtol=1e-4)
