"""Runs that start from a model of the package, and export what measures better: that model or the trained encoder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import asterism
from asterism.nn.weights import packaged
from asterism.train import engine, pretraining
from asterism.train.kind import Init
from asterism.train.online_quality import is_behind_start, verdict
from asterism.train.pretraining import OpenedPretraining
from asterism.train.recipe import load_recipe, model_to_adapt, recipe_names
from asterism.train.run import Run
from tests.packaged_samples import ship
from tests.train.tiny import METHODS, TEACHER, resume

SMALL = [
    "backbone.image_size=16",
    "method.decoder_dim=16",
    "method.decoder_depth=1",
    "method.decoder_heads=2",
    "trainer.steps=4",
    "trainer.batch_size=4",
    "trainer.devices=1",
    "data.workers=0",
    "checkpoint.every_steps=2",
    "monitor.tensorboard=false",
    "monitor.knn.every_epochs=1",  # 2 steps
]


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    ship(tmp_path / "shipped", monkeypatch)


class Measured:
    """Gives the measurements of a run these values."""

    name = "knn"

    def __init__(self, *values: float) -> None:
        self.left = list(values)

    def accuracy(self, *_: object) -> float:
        return self.left.pop(0)


def adapted(out: Path, monkeypatch: pytest.MonkeyPatch, *values: float) -> Run:
    monkeypatch.setattr(pretraining, "open_quality", lambda *_: Measured(*values))
    return asterism.pretrain("mae", "scenes:size=16,count=8", out, overrides=SMALL)


def features(model: str | Path) -> torch.Tensor:
    return asterism.load(model).encode(torch.linspace(0, 1, 768).reshape(1, 3, 16, 16)).cls


def test_training_that_makes_it_worse_exports_the_start(tmp_path, monkeypatch, capsys):
    run = adapted(tmp_path / "run", monkeypatch, 50.0, 0.0, 60.0, 49.9)  # start, pixels, after 2 and 4 steps
    assert torch.equal(features(run.path), features("nano"))
    said = " ".join(capsys.readouterr().out.split())
    assert "starting from nano (--init none: from scratch)" in said
    assert "Kept the model that the run started from" in said
    resume(run.path)  # which finds nothing to repair
    assert "Exported" not in capsys.readouterr().out


def test_training_that_makes_it_better_exports_the_result(tmp_path, monkeypatch, capsys):
    run = adapted(tmp_path / "run", monkeypatch, 50.0, 0.0, 40.0, 55.0)
    assert asterism.load(run.path).step == 4
    assert not torch.equal(features(run.path), features("nano"))
    assert torch.equal(features(run.path / "start"), features("nano"))
    assert "Kept the trained encoder" in capsys.readouterr().out


def test_a_resumed_run_still_knows_its_start(tmp_path, monkeypatch):
    run = adapted(tmp_path / "run", monkeypatch, 50.0, 0.0, 60.0, 49.0)
    shutil.rmtree(run.checkpoints / "step-00000004")
    monkeypatch.setattr(pretraining, "open_quality", lambda *_: Measured(49.0))
    monkeypatch.setattr(packaged, "folder", lambda: tmp_path / "elsewhere")
    resume(run.path)
    assert torch.equal(features(run.path), features(run.path / "start"))


def test_from_scratch_on_request_or_without_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "start", lambda kind, recipe, out, *, init, **_: (recipe.backbone.dim, init))
    assert asterism.pretrain("mae", "photos") == (None, Init("nano"))
    assert asterism.pretrain("mae", "photos", init="none") == (192, None)
    (tmp_path / "shipped" / "nano.safetensors").unlink()
    assert asterism.pretrain("mae", "photos") == (192, None)


@pytest.mark.parametrize("name", [*METHODS, "massl", "sove"])
def test_every_method_with_a_backbone_starts_from_nano(name):
    model = {"stellar": "nano-stellar", "vq": None}.get(name, "nano")
    assert model_to_adapt(name) == model
    assert model_to_adapt(name, ["trainer.accelerator=cuda"]) is None
    if model is None:
        return
    teacher = [f"method.teacher={TEACHER}"] if name == "distill" else []
    recipe = load_recipe(name, ["data.path=scenes:count=8", *teacher], adapts=True)
    backbone = OpenedPretraining(recipe, Init(model)).method.backbone.network
    given = asterism.load(model).backbone.network
    for own, start in zip(backbone.blocks.parameters(), given.blocks.parameters(), strict=True):
        assert torch.equal(own, start)


def test_what_belongs_to_the_model_may_not_be_given(tmp_path):
    assert model_to_adapt("dino", ["backbone.image_size=96", "optim.lr=1"]) == "nano"
    assert model_to_adapt("dino", ["backbone.depth=2"]) is None
    assert model_to_adapt("stellar", ["method.tokens=3"]) is None
    assert not [name for name in recipe_names() if "-" in name and model_to_adapt(name)]


@pytest.mark.parametrize(("last", "behind"), [(49.9, True), (50.0, False), (53.0, False)])
def test_what_is_kept_follows_from_the_log(last, behind):
    records = [{"step": 0, "knn": 50.0, "knn_start": 50.0}, {"step": 1, "knn": 70.0}, {"step": 2, "knn": last}]
    assert is_behind_start(records) is behind
    assert verdict(records).startswith("Kept the model that" if behind else "Kept the trained encoder")
    assert not is_behind_start([{"step": 0, "knn": 50.0}, {"step": 2, "knn": last}]), "a run from scratch"
