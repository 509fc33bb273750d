import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from asterism.config import write_yaml
from asterism.errors import Interrupted, UserError
from asterism.methods import method_class
from asterism.methods.dino import Dino
from asterism.nn.weights.load import load_weights_into
from asterism.train import building, checkpoint
from asterism.train.kind import Init
from tests.train.tiny import METHODS, Killed, pretrain, resume, tiny_recipe


def losses(run):
    return [record["loss"] for record in run.metrics() if "loss" in record]


def same_files(first: Path, second: Path) -> None:
    for name in ("method.safetensors", "optimizer.safetensors"):
        one, two = load_file(first / name), load_file(second / name)
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert torch.equal(value, two[key]), key


@pytest.mark.parametrize("method", ["dino", "mae"])
def test_a_run_writes_all_its_files(tmp_path, method):
    run = pretrain(
        tiny_recipe(method, monitor={"tensorboard": True, "knn": {"bank": 16, "queries": 8, "k": 3}}), tmp_path / "run"
    )
    present = {path.name for path in run.path.iterdir()}
    assert {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "encoder.safetensors"} <= present
    assert list(run.path.glob("events.*"))
    assert all(math.isfinite(loss) for loss in losses(run))
    record = next(record for record in run.metrics() if "loss" in record)
    measured = {"lr", "gradient_norm", "feature_std", "effective_rank", "images_per_second", "data_wait_share"}
    assert measured <= record.keys()
    assert any("knn" in record for record in run.metrics())
    encoder = run.encoder()
    assert encoder.step == 6
    assert encoder.encode(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).cls.shape == (2, 32)


@pytest.mark.parametrize(
    ("method", "optimizer"), [("dino", "adamw"), ("dino", "muon"), ("distill", "adamw"), ("stellar", "adamw")]
)
def test_resuming_equals_an_uninterrupted_run(tmp_path, method, optimizer, monkeypatch):
    """Stopped by a signal where STELLAR changes its phase, then killed between two checkpoints, then finished."""
    recipe = tiny_recipe(method, checkpoint={"every_steps": 2, "keep_last": 5}, optim={"name": optimizer})
    whole = pretrain(recipe, tmp_path / "whole")

    kind = method_class(method)
    loss, after_update = kind.loss, kind.after_update

    def stopped(self, batch, progress):
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(self, batch, progress)

    def killed(self, progress):
        after_update(self, progress)
        if progress.step == 4:
            raise Killed

    parts = tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(kind, "loss", stopped)
        with pytest.raises(Interrupted, match="saved; resume with: asterism pretrain --resume") as stop:
            pretrain(recipe, parts)
        assert stop.value.exit_code == 128 + signal.SIGTERM
        assert checkpoint.steps(parts / "checkpoints") == [2, 3]
        patch.undo()
        patch.setattr(kind, "after_update", killed)
        with pytest.raises(Killed):
            resume(parts)
    assert checkpoint.steps(parts / "checkpoints") == [2, 3, 4]
    run = resume(parts)
    assert losses(run) == losses(whole)
    same_files(whole.checkpoints / "last", run.checkpoints / "last")
    assert whole.weights.read_bytes() == run.weights.read_bytes()


def test_accumulation_changes_neither_weights_nor_teacher_nor_centre(tmp_path):
    states = []
    for accumulate in (1, 4):
        recipe = tiny_recipe(trainer={"accumulate": accumulate})
        run = pretrain(recipe, tmp_path / str(accumulate))
        states.append((losses(run), load_file(run.checkpoints / "last" / "method.safetensors")))
    (one_loss, one), (four_loss, four) = states
    assert four_loss == pytest.approx(one_loss, abs=1e-5)
    for name, value in one.items():
        if not name.endswith("qkv.bias"):  # softmax ignores the keys' bias: so Adam only follows its rounding noise
            torch.testing.assert_close(four[name], value, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("flsl", {}, r"volume_weight = 5.0 compares the mean assignment"),
        ("flsl", {"targets": "sinkhorn", "volume_weight": 0}, "targets = sinkhorn balances clusters"),
        ("cribo", {}, "object_batch = all matches objects"),
        ("stellar", {}, "balanced targets of STELLAR"),
    ],
)
def test_micro_batches_are_refused_where_the_loss_needs_the_whole_batch(tmp_path, name, changes, reason):
    recipe = tiny_recipe(name, method=changes, trainer={"accumulate": 2})
    with pytest.raises(UserError, match=rf"trainer.accumulate = 2, but .*{reason}.*Set trainer.accumulate=1"):
        pretrain(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_micro_batches_are_allowed_where_the_loss_is_per_process(tmp_path):
    published = tiny_recipe("cribo", method={"object_batch": "process"}, trainer={"accumulate": 2, "steps": 2})
    assert pretrain(published, tmp_path / "run").metrics()
    assert all(
        tiny_recipe(name).method.needs_whole_batch is None for name in ("dino", "distill", "ibot", "mae", "sop", "vq")
    )
    assert tiny_recipe("flsl", method={"volume_weight": 0}).method.needs_whole_batch is None


def test_the_last_layer_is_frozen_and_then_trained(tmp_path):
    recipe = tiny_recipe(
        method={"freeze_last_layer": 1}, checkpoint={"every_steps": 5, "keep_last": 5}, optim={"weight_decay": 0.0}
    )
    run = pretrain(recipe, tmp_path / "run")  # 5 steps per epoch
    start = building.build_method(recipe).head.last_layer.weight_v
    first = load_file(run.checkpoints / "step-00000005" / "method.safetensors")["head.last_layer.weight_v"]
    second = load_file(run.checkpoints / "step-00000006" / "method.safetensors")["head.last_layer.weight_v"]
    assert torch.equal(first, start)
    assert not torch.equal(second, first)


def test_a_non_finite_loss_stops_before_the_update(tmp_path, monkeypatch):
    original = Dino.loss

    def broken(self, batch, progress):
        result = original(self, batch, progress)
        factor = float("nan") if progress.step == 4 else 1.0
        return type(result)({"dino": result.terms["dino"] * factor}, embeddings=result.embeddings)

    monkeypatch.setattr(Dino, "loss", broken)
    with pytest.raises(UserError, match=r"not finite at step 4: dino = nan"):
        pretrain(tiny_recipe(checkpoint={"every_steps": 2}), tmp_path / "run")
    state = checkpoint.read(tmp_path / "run" / "checkpoints")
    assert state.step == 4
    assert all(value.isfinite().all() for value in state.method.values() if value.is_floating_point())


def test_a_collapse_is_logged_in_the_metrics(tmp_path, monkeypatch):
    original = Dino.loss

    def collapsed(self, batch, progress):
        result = original(self, batch, progress)
        return type(result)(result.terms, embeddings=torch.ones_like(result.embeddings))

    monkeypatch.setattr(Dino, "loss", collapsed)
    run = pretrain(tiny_recipe(method={"freeze_last_layer": 0}), tmp_path / "run")
    assert ["collapsed" in record.get("warning", "") for record in run.metrics()] == [False, True] + [False] * 4


def test_init_starts_student_and_teacher_from_the_weights(tmp_path):
    source = pretrain(tiny_recipe("mae"), tmp_path / "mae")
    weights = load_file(source.weights)
    method = building.build_method(tiny_recipe())
    load_weights_into(method.backbone, source.weights)
    method.backbone_was_loaded()
    blocks = [name for name in weights if name.startswith("blocks")]
    assert blocks
    for name in blocks:
        assert torch.equal(method.backbone.network.state_dict()[name], weights[name])
        assert torch.equal(method.teacher_backbone.network.network.state_dict()[name], weights[name])
    started = pretrain(tiny_recipe(), tmp_path / "dino", init=Init(str(source.path)))
    assert losses(started)[0] != losses(pretrain(tiny_recipe(), tmp_path / "fresh"))[0]


def test_cribo_learns_from_labelled_regions(tmp_path):
    path = "scenes:size=16,count=16"
    objects = METHODS["cribo"]["objects"] | {"algorithm": "segments"}
    changes = METHODS["cribo"] | {"name": "cribo", "objects": objects, "criterion": "segments", "neighbour_start": 0}
    run = pretrain(tiny_recipe("cribo", method=changes, data={"path": path}), tmp_path / "run")
    assert all(math.isfinite(loss) for loss in losses(run))
    assert 0 < run.metrics()[-1]["objects_per_image"] <= 4
    assert run.metrics()[-1]["bootstrapping_ratio"] > 0


class TestBadInput:
    def test_changed_data_and_changed_settings_on_resume(self, tmp_path):
        run = pretrain(tiny_recipe(), tmp_path / "run")
        with pytest.raises(UserError, match=r"optim\.lr cannot change when a run is resumed"):
            resume(run.path, ("optim.lr=1",))
        with pytest.raises(UserError, match="has 80 images, but the run was started on 40"):
            resume(run.path, ("data.path=scenes:size=16,count=80",))
        with pytest.raises(UserError, match="is not a run"):
            resume(tmp_path)


@pytest.mark.slow
def test_killed_at_any_moment_a_run_resumes_to_the_same_result(tmp_path):
    """SIGKILL again and again, also while saving (every step saves); then compare with an uninterrupted run."""
    recipe = tiny_recipe(trainer={"steps": 60}, checkpoint={"every_steps": 1, "keep_last": 2})
    whole = pretrain(recipe, tmp_path / "whole")
    path = tmp_path / "recipe.yaml"
    path.write_text(write_yaml(recipe))
    parts = tmp_path / "parts"
    command = [sys.executable, "-m", "asterism", "pretrain", str(path), "--out", str(parts)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    for kill in range(3):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        target = 10 + 15 * kill
        while process.poll() is None and max(checkpoint.steps(parts / "checkpoints"), default=0) < target:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        state = checkpoint.read(parts / "checkpoints")
        assert target <= state.step < 60
        command = [sys.executable, "-m", "asterism", "pretrain", "--resume", str(parts)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    same_files(whole.checkpoints / "last", parts / "checkpoints" / "last")
    read = [json.loads(line) for line in (parts / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in read] == list(range(1, 61))
    assert losses(whole) == [record["loss"] for record in read]
