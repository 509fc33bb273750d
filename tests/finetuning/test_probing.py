"""The linear probe that fine-tuning starts from: logistic regression, and kept unless it is beaten."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import asterism
from asterism.finetuning.labelled import open_parts
from asterism.finetuning.model import load_model
from asterism.finetuning.opening import OpenedFineTuning
from asterism.finetuning.probing import fitted_probe
from asterism.ops.logistic_regression import RIDGES, logistic_regression
from tests.finetuning.segmentation.drawn import drawn_folder
from tests.finetuning.tiny import coloured_folder, finetune, tiny
from tests.train.tiny import TEACHER


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_folder(tmp_path_factory.mktemp("coloured") / "train")


def test_it_is_the_logistic_regression_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 5, generator=draw) * torch.tensor([1, 5, 0.1, 1, 1]) + labels[:, None] + 7
    targets = F.one_hot(labels).float()
    *_, ours = logistic_regression(features, targets, RIDGES[:4])
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    theirs = LogisticRegression(C=1 / (RIDGES[3] * 60), max_iter=2000, tol=1e-8).fit(standard, labels)
    expected = torch.from_numpy(theirs.predict_proba(standard)).float()
    torch.testing.assert_close(ours(features).softmax(1), expected, atol=2e-3, rtol=0)


def test_the_layer_that_is_measured_has_not_seen_held_out_images(data: Path) -> None:
    recipe = tiny(data, "task.start=probe")
    task, parts = OpenedFineTuning(recipe).task, open_parts(recipe)
    probe = fitted_probe(task, parts, 0)
    alone = fitted_probe(task, open_parts(recipe.model_copy(update={"validation": None})), 0)
    assert not torch.equal(probe.measured.weight, probe.kept.weight)
    torch.testing.assert_close(alone.kept.weight.norm(), probe.kept.weight.norm(), rtol=0.5, atol=0)


@pytest.mark.parametrize(("best", "kept"), [(64.0, 0), (80.0, 2)])
def test_it_is_kept_unless_fine_tuning_wins_by_more_than_chance(
    tmp_path: Path, data: Path, best: float, kept: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """On nine held-out images an accuracy of 50 has a standard error of 16.7."""
    scores = iter([50.0, 40.0, best, *[0.0] * 20])
    monkeypatch.setattr("asterism.finetuning.job.measured", lambda *_: {"top1": next(scores)})
    run = finetune(tiny(data, "task.start=probe", "validation.every_epochs=0.2", "trainer.steps=3"), tmp_path / "run")
    assert load_model(run.path).step == kept
    printed = " ".join(capsys.readouterr().out.split())
    assert f"linear probe of the frozen network 50.00, fine-tuned {best:.2f} at best (step 2)" in printed
    assert ("Kept: the probe, because so small a lead may be chance" in printed) == (kept == 0)
    model, probe = load_model(run.path), load_model(run.path / "probe.safetensors")
    same = torch.equal(
        model.task.state_dict()["head.classifier.weight"], probe.task.state_dict()["head.classifier.weight"]
    )
    assert same == (kept == 0)


def test_what_is_kept_is_fitted_to_all_images_on_the_network_as_it_was(tmp_path: Path, data: Path) -> None:
    recipe = tiny(data, "task.start=probe", "optim.lr=0", "optim.warmup_lr=0", "optim.min_lr=0", "trainer.steps=2")
    run = finetune(recipe, tmp_path / "run")
    model, source = load_model(run.path), asterism.load(TEACHER)
    assert all(
        torch.equal(value, source.backbone.state_dict()[key]) for key, value in model.backbone.state_dict().items()
    )
    opened = OpenedFineTuning(run.finetune_recipe)
    expected = fitted_probe(opened.task, opened.parts, 0).kept
    assert torch.equal(model.task.state_dict()["head.classifier.weight"], expected.weight)


def test_an_evaluation_shows_the_probe_and_other_baselines_beside(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([10.0, 90.0])
    with monkeypatch.context() as patch:
        patch.setattr("asterism.finetuning.job.measured", lambda *_: {"top1": next(scores)})
        run = finetune(tiny(data, "task.start=probe", "trainer.steps=1"), tmp_path / "run")
    found = asterism.evaluate(run, data, baselines=True)["task"]
    assert list(found.baselines) == ["linear probe", "untrained", "pixels"]
    assert found.baselines["pixels"]["top1"] > 90  # a colour is a class


def test_segmentation_starts_from_a_probe_of_patches(tmp_path: Path) -> None:
    """Without a step of training, it knows more of the shapes than a head with random weights."""
    data = drawn_folder(tmp_path / "shapes")
    values = {}
    for start in ("probe", "fresh"):
        recipe = tiny(
            data, f"task.start={start}", "trainer.steps=1", "optim.lr=0", "trainer.batch_size=4", task="segment"
        )
        values[start] = finetune(recipe, tmp_path / start).metrics()[0]["held_out/miou"]
    assert values["probe"] > values["fresh"] + 10
    found = asterism.evaluate(tmp_path / "probe", data)["task"]
    assert "the model is the linear probe" in found.notes[0]
