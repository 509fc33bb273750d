"""A whole run: files, exact resume, best weights on held-out images, early stop, and what is refused."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import asterism
from asterism.errors import Interrupted, UserError
from asterism.finetuning.job import FineTuning, _Validation
from asterism.finetuning.labelled import open_parts
from asterism.finetuning.learner import FineTuned
from asterism.finetuning.model import load_model
from asterism.finetuning.opening import OpenedFineTuning
from asterism.train import checkpoint
from tests.finetuning.tiny import coloured_folder, finetune, resume, tiny
from tests.train.tiny import Killed


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_folder(tmp_path_factory.mktemp("coloured") / "train")


def losses(run: Any) -> list[float]:
    return [record["loss"] for record in run.metrics() if "loss" in record]


@pytest.mark.parametrize("task", ["classify", "probe", "classify from a probe"])
def test_resuming_equals_an_uninterrupted_run(
    tmp_path: Path, data: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by a signal, then killed between a measurement that wrote the model and the next checkpoint."""
    saved = ["checkpoint.every_steps=2", "checkpoint.keep_last=9"]
    changes = [*saved, "optim.warmup_epochs=0", "validation.every_epochs=0.3"]
    if task == "probe":
        changes.append("task.learning_rates=[0.1, 1.0]")
    if "from" in task:
        changes += ["task.start=probe", "task.augmentation.crop_area=[0.1, 0.2]"]
    recipe = tiny(data, *changes, task=task.split()[0])
    whole = finetune(recipe, tmp_path / "whole")
    loss, measure, parts = FineTuned.loss, _Validation.measure, tmp_path / "parts"

    def stopped(self: Any, batch: Any, progress: Any) -> Any:
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(self, batch, progress)

    def killed(self: Any, step: int) -> Any:
        found = measure(self, step)
        if step == 5:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(FineTuned, "loss", stopped)
        with pytest.raises(Interrupted, match="saved; resume with: asterism finetune --resume"):
            finetune(recipe, parts)
        patch.undo()
        patch.setattr(_Validation, "measure", killed)
        with pytest.raises(Killed):
            resume(parts)
    run = resume(parts)
    assert losses(run) == losses(whole)
    for name in ("method.safetensors", "optimizer.safetensors"):
        one, two = load_file(whole.checkpoints / "last" / name), load_file(run.checkpoints / "last" / name)
        assert one.keys() == two.keys()
        assert all(torch.equal(value, two[key]) for key, value in one.items()), name
    assert whole.model.read_bytes() == run.model.read_bytes()
    assert whole.weights.read_bytes() == run.weights.read_bytes()


def test_the_kept_weights_are_the_best_on_held_out_images(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With scores that rise and fall, the model is that of the highest, the first of equals."""
    scores = {0: 10.0, 1: 30.0, 2: 50.0, 3: 50.0, 4: 20.0}
    seen: list[tuple[int, dict[str, torch.Tensor]]] = []

    def measure(self: Any, step: int) -> dict[str, float]:
        job: FineTuning = self._job
        task = job.model.final(job.device)
        seen.append((step, {name: value.clone() for name, value in task.state_dict().items()}))
        with monkeypatch.context() as patch:
            patch.setattr("asterism.finetuning.job.measured", lambda *_: {"top1": scores.get(step, 0.0)})
            return original(self, step)

    original = _Validation.measure
    monkeypatch.setattr(_Validation, "measure", measure)
    recipe = tiny(data, "validation.every_epochs=0.2", "validation.patience=3", "trainer.steps=20", "average.decay=0.5")
    run = finetune(recipe, tmp_path / "run")
    model = load_model(run.path)
    assert model.step == 2
    kept = dict(seen)[2]
    assert all(torch.equal(value, kept[name]) for name, value in model.task.state_dict().items())
    assert checkpoint.steps(run.checkpoints)[-1] == 5  # three measurements after the best one
    assert [step for step, _ in seen] == [0, 1, 2, 3, 4, 5]
    resume(run.path)  # is finished, and stays as it is
    assert load_model(run.path).step == 2


@pytest.mark.parametrize(("first", "ends_at"), [(60.0, 3), (0.0, 8)])
def test_patience_counts_from_a_good_start_but_not_from_nothing(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, first: float, ends_at: int
) -> None:
    """The first measurement is the best: training ends. All are 0: it may still begin to learn."""
    scores = iter([first, *[0.0] * 20])
    monkeypatch.setattr("asterism.finetuning.job.measured", lambda *_: {"top1": next(scores)})
    recipe = tiny(data, "validation.every_epochs=0.2", "validation.patience=3", "trainer.steps=8")
    run = finetune(recipe, tmp_path / "run")
    assert checkpoint.steps(run.checkpoints)[-1] == ends_at
    assert load_model(run.path).step == 0


def test_the_average_is_what_is_measured_and_kept(tmp_path: Path, data: Path) -> None:
    run = finetune(tiny(data, "validation=null", "average.decay=0.9"), tmp_path / "run")
    state, kept = load_file(run.checkpoints / "last" / "method.safetensors"), load_file(run.model)
    for name, value in kept.items():
        assert torch.equal(value, state[f"average.network.{name}"]), name
    assert any(not torch.equal(value, state[f"task.{name}"]) for name, value in kept.items())


def test_held_out_images_are_class_balanced_and_never_trained_on(data: Path) -> None:
    parts = open_parts(tiny(data))
    assert parts.held_out is not None
    train, held_out = set(parts.train.keys()), set(parts.held_out.keys())
    assert not train & held_out
    assert train | held_out == set(parts.everything.keys())
    assert sorted(parts.held_out.label(place) for place in range(len(parts.held_out))) == [0] * 3 + [1] * 3 + [2] * 3
    other = open_parts(tiny(data, "trainer.seed=1")).held_out
    assert other is not None
    assert set(other.keys()) != held_out


def test_a_share_of_the_labels_is_class_balanced_and_a_list_is_followed(tmp_path: Path, data: Path) -> None:
    few = open_parts(tiny(data, "data.label_share=0.25", "validation=null")).everything
    assert sorted(few.label(place) for place in range(len(few))) == [0] * 3 + [1] * 3 + [2] * 3
    names = tmp_path / "names.txt"
    names.write_text("red/3\nblue/1.png\ngreen/0\n")
    listed = open_parts(tiny(data, f"data.label_list={names}", "validation=null")).everything
    assert sorted(listed.keys()) == ["blue/1.png", "green/0.png", "red/3.png"]


def test_a_run_learns_predicts_and_is_measured(tmp_path: Path, data: Path) -> None:
    run = finetune(
        tiny(data, "trainer.steps=40", "optim.lr=3e-3", "optim.lr_scaling=none", "task.mixing=null"), tmp_path / "run"
    )
    assert max(record["held_out/top1"] for record in run.metrics() if "held_out/top1" in record) == 100
    model = asterism.load(run)
    picture = Image.new("RGB", (30, 20), (225, 35, 25))
    assert model.predict(picture).label == "red"
    assert [found.label for found in model.predict([picture, Image.new("RGB", (9, 31), (20, 40, 220))])] == [
        "red",
        "blue",
    ]
    test = coloured_folder(tmp_path / "new", images=3, classes=("green", "red"))  # not all classes, other numbers
    result = asterism.evaluate(run, test)["task"]
    assert result.values["top1"] == 100
    assert result.protocol == "classify"
    assert json.loads(next((run.path / "eval").glob("*.json")).read_text())["values"]["top1"] == 100


def test_fine_tuning_from_the_first_layer_of_the_projection_head(tmp_path: Path, data: Path) -> None:
    from tests.train.tiny import pretrain, tiny_recipe

    source = pretrain(tiny_recipe("dino", trainer={"steps": 2}), tmp_path / "source")
    run = finetune(
        tiny(data, "head=first-layer", "trainer.steps=1", "validation=null", source=source.path), tmp_path / "run"
    )
    layer = load_file(source.checkpoints / "last" / "method.safetensors")["teacher_head.network.mlp.0.weight"]
    recipe = run.finetune_recipe
    assert recipe.task.model_dump()["head"]["hidden"] == len(layer)
    assert torch.equal(OpenedFineTuning(recipe).task.state_dict()["head.layers.0.weight"], layer)
    with pytest.raises(
        UserError, match="first-layer starts from the pretrained projection head, but the source has none"
    ):
        finetune(tiny(data, "head=first-layer"), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_other_image_sizes_resample_the_positions_as_timm_does(tmp_path: Path, data: Path) -> None:
    from timm.layers import resample_abs_pos_embed

    from tests.train.tiny import TEACHER

    positions = OpenedFineTuning(tiny(data, "source.image_size=40")).task.backbone.network.pos_embed
    before = asterism.load(TEACHER).backbone.network.pos_embed
    torch.testing.assert_close(positions, resample_abs_pos_embed(before, [5, 5]), atol=1e-5, rtol=0)


def _one_class(folder: Path) -> Path:
    return coloured_folder(folder, classes=("red",))


def _empty_class(folder: Path) -> Path:
    coloured_folder(folder)
    (folder / "yellow").mkdir()
    return folder


def _single_images(folder: Path) -> Path:
    return coloured_folder(folder, images=1)


def _no_labels(folder: Path) -> Path:
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (_one_class, [], "one subfolder per class"),
        (_no_labels, [], "has no labels, which are needed here"),
        (_single_images, [], "too few images to hold some out"),
        (coloured_folder, ["trainer.batch_size=7"], "pairs of images are mixed"),
        (coloured_folder, ["trainer.batch_size=1000"], "larger than the data set"),
        (coloured_folder, ["source.image_size=20"], "not a multiple of the patch size 8; choose"),
        (coloured_folder, ["data.label_list=missing.txt"], "missing.txt"),
        (coloured_folder, ["head.pooling=sparse"], "takes the mean concept token, but the source has none"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, make: Any, changes: list[str], message: str
) -> None:
    folder = make(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        finetune(tiny(folder, *changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_automatic_batch_size_suits_mixing(tmp_path: Path) -> None:
    """Five images to train on make batches of four, not an error about pairs that the user did not ask for."""
    data = coloured_folder(tmp_path / "data", images=2, classes=("red", "blue", "green"))
    run = finetune(tiny(data, "trainer.batch_size=auto", "trainer.steps=2"), tmp_path / "run")
    assert run.finetune_recipe.trainer.batch_size == 2


def test_a_damaged_model_is_named_and_never_taken_for_an_encoder(tmp_path: Path, data: Path) -> None:
    run = finetune(tiny(data, "trainer.steps=1"), tmp_path / "run")
    whole = run.model.read_bytes()
    for damaged in (whole[:-40], whole[:40], b""):
        run.model.write_bytes(damaged)
        for use in (load_model, asterism.load, partial(asterism.export, to="safetensors", out=tmp_path / "out")):
            with pytest.raises(UserError, match=r"model\.safetensors"):
                use(run.path)
    assert not (tmp_path / "out").exists()
