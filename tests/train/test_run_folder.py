"""Resuming runs that were killed, edited, moved or damaged; and new runs that fail."""

import json
import math
import os
import pkgutil
import shutil
from pathlib import Path

import pytest
from PIL import Image

from asterism import api
from asterism.errors import UserError
from asterism.lock import folder_lock, owned
from asterism.methods.mae import Mae
from asterism.train import checkpoint
from asterism.train.building import export, exported_step
from asterism.train.kind import kind_of
from asterism.train.run import Run, open_pretrained
from tests.train.tiny import pretrain, resume, tiny_recipe


def recipe(**sections):
    changes = {"trainer": {"steps": 4, "batch_size": 8, "accelerator": "cpu"}, "checkpoint": {"every_steps": 2}}
    return tiny_recipe("mae", **changes | sections)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return pretrain(recipe(), tmp_path_factory.mktemp("finished") / "run").path


@pytest.fixture
def run(finished, tmp_path) -> Run:
    return Run(Path(shutil.copytree(finished, tmp_path / "run", symlinks=True)))


def stopped_at(run: Run, step: int) -> None:
    """The run as it was after the checkpoint of an earlier step."""
    for later in checkpoint.steps(run.checkpoints):
        if later > step:
            shutil.rmtree(run.checkpoints / f"step-{later:08d}")


def test_the_encoder_of_a_run_killed_at_the_very_end_is_exported_again(run, finished, capsys):
    state = checkpoint.read(run.checkpoints / "step-00000002")
    export(run.recipe, state, run.weights)  # as if the process had been killed after the last checkpoint
    assert exported_step(run) == 2
    resume(run.path)
    printed = capsys.readouterr().out
    assert "Exported encoder.safetensors again, from the checkpoint of step 4" in printed
    assert "is finished" in printed
    assert run.weights.read_bytes() == (finished / "encoder.safetensors").read_bytes()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"short")])
def test_a_missing_or_damaged_encoder_is_exported_again(run, finished, damage):
    damage(run.weights)
    resume(run.path)
    assert run.weights.read_bytes() == (finished / "encoder.safetensors").read_bytes()


def test_a_damaged_checkpoint_is_trained_again_from_the_one_before(run, finished, capsys):
    path = run.checkpoints / "step-00000004" / "method.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    resume(run.path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "method.safetensors does not match its checksum" in printed
    assert "Resuming from step-00000002" in printed
    assert {path.name for path in run.checkpoints.iterdir()} == {
        "step-00000002",
        "step-00000004",
        "damaged-step-00000004",
        "last",
    }
    for name in ("checkpoints/step-00000004/method.safetensors", "encoder.safetensors"):
        assert (run.path / name).read_bytes() == (finished / name).read_bytes()
    assert [r["step"] for r in run.metrics()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("trainer.seed", "seed: 0", "seed: 1"),
        ("optim.lr", "lr: 0.05", "lr: 0.5"),
        ("trainer.batch_size", "batch_size: 8", "batch_size: 4"),
        ("trainer.steps", "steps: 4", "steps: 40"),
        ("method.decoder_depth", "decoder_depth: 1", "decoder_depth: 2"),
        ("data.shuffle", "shuffle: true", "shuffle: false"),
    ],
)
def test_an_edited_recipe_is_refused(run, key, old, new):
    path = run.path / "config.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    value = new.partition(": ")[2]
    with pytest.raises(UserError, match=rf"config.yaml was changed since .*: {key} is (?i:{value}), but was"):
        resume(run.path)


def test_nothing_of_an_edited_recipe_is_opened(run, monkeypatch):
    """It may name a network that would be fetched."""
    monkeypatch.setattr("asterism.train.pretraining.build_method", lambda recipe: pytest.fail("it was built"))
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(UserError, match=r"trainer\.seed is 1, but was 0"):
        resume(run.path)


def test_a_damaged_state_does_not_make_the_recipe_look_edited(run, finished):
    path = run.checkpoints / "step-00000004" / "state.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    resume(run.path)
    assert run.weights.read_bytes() == (finished / "encoder.safetensors").read_bytes()


def test_settings_that_do_not_affect_the_result_may_change(run, finished):
    stopped_at(run, 2)
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("keep_last: 2", "keep_last: 3").replace("log_every: 1", "log_every: 2"))
    resume(run.path, ("data.workers=auto", "data.prefetch=1", "data.keep_mb=1", "data.max_bad_share=0.5"))
    assert run.weights.read_bytes() == (finished / "encoder.safetensors").read_bytes()


def test_a_checkpoint_of_the_first_format_still_protects_length_and_batch(run):
    for step in (2, 4):
        folder = run.checkpoints / f"step-{step:08d}"
        (folder / "checksums.txt").unlink()
        (folder / "state.json").write_text(json.dumps({"step": step, "steps": 4, "images": 40, "batch_size": 8}))
    assert resume(run.path).path == run.path
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("steps: 4", "steps: 40"))
    with pytest.raises(UserError, match=r"trainer\.steps is 40, but was 4"):
        resume(run.path)


def photos(folder: Path, first: str = "0") -> str:
    folder.mkdir()
    for name in (first, *(str(number) for number in range(1, 16))):
        shade = (len(name) * 40, 16 * int(name, 36) % 256, 7)
        Image.new("RGB", (20, 16), shade).save(folder / f"{name}.png")
    return str(folder)


def test_moved_data_gives_the_same_result_and_other_data_is_refused(tmp_path):
    changes = {"data": {"path": photos(tmp_path / "here"), "workers": 0}}
    whole = pretrain(recipe(**changes), tmp_path / "whole")
    parts = Run(Path(shutil.copytree(whole.path, tmp_path / "parts", symlinks=True)))
    stopped_at(parts, 2)
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(UserError, match="here"):
        resume(parts.path)
    with pytest.raises(UserError, match="16 images with other names than those the run was started on"):
        resume(parts.path, (f"data.path={photos(tmp_path / 'other', 'a')}",))
    copied = Path(shutil.copytree(tmp_path / "there", tmp_path / "replaced"))
    Image.new("RGB", (20, 16), (1, 2, 3)).save(copied / "7.png")
    with pytest.raises(UserError, match="other images than those the run was started on, under the same names"):
        resume(parts.path, (f"data.path={copied}",))
    resume(parts.path, (f"data.path={tmp_path / 'there'}",))
    for name in ("checkpoints/step-00000004/optimizer.safetensors", "encoder.safetensors"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_data_folder_that_vanishes_ends_the_run_with_a_good_checkpoint(tmp_path, monkeypatch):
    place = photos(tmp_path / "photos")
    after_update = Mae.after_update

    def vanish(self, progress):
        after_update(self, progress)
        if progress.step == 2:
            shutil.rmtree(place)

    monkeypatch.setattr(Mae, "after_update", vanish)
    with pytest.raises(UserError, match=r"16 images in a row of .* cannot be read"):
        pretrain(recipe(data={"path": place, "workers": 0}), tmp_path / "run")
    assert checkpoint.read(tmp_path / "run" / "checkpoints").step == 2
    assert not folder_lock(tmp_path / "run").exists()


def test_a_locked_run_is_neither_resumed_nor_overwritten(run):
    with owned(folder_lock(run.path), run.path):
        before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
        with pytest.raises(UserError, match="is being written by"):
            resume(run.path)
        for overwrite in (False, True):
            with pytest.raises(UserError, match="is being written by"):
                pretrain(recipe(), run.path, overwrite=overwrite)
        assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
        assert run.encoder().step == 4  # readers are not affected


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_run_killed_before_its_recipe_was_written_is_started_again(tmp_path, monkeypatch, overwrite):
    class Killed(BaseException):
        """Simulates SIGKILL: nothing is cleaned up."""

    def killed(folder):
        (folder / ".lock").write_text("{}")
        (folder / ".config.yaml.0123456789abcdef.asterism-tmp").write_text("half")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("asterism.train.run.empty", killed)
        patch.setattr("asterism.train.engine.empty", lambda folder: None)
        with pytest.raises(Killed):
            pretrain(tiny_recipe(), tmp_path / "run")
    run = pretrain(tiny_recipe(), tmp_path / "run", overwrite=overwrite)
    assert run.weights.exists()
    assert not [path.name for path in run.path.rglob(".*")]


def test_overwriting_leaves_nothing_of_the_old_run(run):
    (run.path / "eval").mkdir()
    (run.path / "eval" / "knn.json").write_text("{}")
    again = pretrain(recipe(trainer={"steps": 1, "batch_size": 8, "accelerator": "cpu"}), run.path, overwrite=True)
    assert checkpoint.steps(again.checkpoints) == [1]
    assert {path.name for path in run.path.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "encoder.safetensors",
        "environment.json",
        "metrics.jsonl",
    }


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (1, "the weights are not finite after step 1: .*They were not saved"),
        (3, "the loss is not finite at step 1: .*An earlier step made the weights not finite"),
    ],
)
def test_weights_that_are_not_finite_are_neither_saved_nor_exported(tmp_path, monkeypatch, steps, message):
    after_update = Mae.after_update

    def overflow(self, progress):
        after_update(self, progress)
        next(self.parameters()).data.fill_(math.inf)

    monkeypatch.setattr(Mae, "after_update", overflow)
    changes = {"trainer": {"steps": steps, "batch_size": 8, "accelerator": "cpu"}, "checkpoint": {"every_steps": 5}}
    with pytest.raises(UserError, match=rf"{message}.*there is no checkpoint yet"):
        pretrain(recipe(**changes), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("change", ["deleted", "moved", "replaced"])
def test_a_folder_that_is_taken_away_while_it_is_trained(tmp_path, monkeypatch, change):
    """After the first checkpoint. What is at its place then belongs to somebody else."""
    out, moved, after_update = tmp_path / "run", tmp_path / "moved", Mae.after_update

    def disturb(self, progress):
        after_update(self, progress)
        if progress.step == 2:
            shutil.rmtree(out) if change == "deleted" else out.rename(moved)
        if progress.step == 2 and change == "replaced":
            out.mkdir()
            (out / ".lock").write_text("of another process")

    monkeypatch.setattr(Mae, "after_update", disturb)
    with pytest.raises(UserError, match=f"{out} was moved or deleted while it was trained, so step 4 cannot be saved"):
        pretrain(recipe(), out)
    if change == "replaced":
        assert (out / ".lock").read_text() == "of another process"
    if change != "deleted":
        monkeypatch.setattr(Mae, "after_update", after_update)
        assert checkpoint.steps(resume(moved).checkpoints) == [2, 4]


@pytest.mark.parametrize(
    ("last", "command"),
    [("asterism.evals.run.run_protocol", "evaluate"), ("asterism.reports.write._single", "report")],
)
def test_a_run_that_is_moved_while_it_is_used_gets_no_second_folder(run, tmp_path, monkeypatch, last, command):
    measure, moved = pkgutil.resolve_name(last), tmp_path / "moved"

    def moving(*words, **more):
        found = measure(*words, **more)
        run.path.rename(moved)
        return found

    monkeypatch.setattr(last, moving)
    with pytest.raises(UserError, match="no such folder"):
        getattr(api, command)(run.path, **({"knn": {"k": [2]}} if command == "evaluate" else {}))
    assert not run.path.exists()


def test_an_error_of_any_kind_before_the_first_step_leaves_no_folder(tmp_path, monkeypatch):
    def broken(self, batch, progress):
        raise OSError("something else")

    monkeypatch.setattr(Mae, "loss", broken)
    with pytest.raises(OSError, match="something else"):
        pretrain(recipe(), tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="something else"):
        pretrain(recipe(), tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())


def test_an_encoder_that_cannot_be_written_leaves_a_complete_checkpoint(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, os.strerror(28), "encoder.safetensors")

    monkeypatch.setattr("asterism.nn.safetensors_file.write_tensors", full)
    with pytest.raises(UserError, match=r"No space left.*the checkpoint of step 2 is complete"):
        pretrain(recipe(), tmp_path / "run")
    monkeypatch.undo()
    assert resume(tmp_path / "run").encoder().step == 4


class TestDamagedFiles:
    @pytest.mark.parametrize("name", ["metrics.jsonl", "encoder.safetensors", "bad_images.jsonl", "environment.json"])
    def test_a_folder_in_place_of_a_file(self, run, name):
        (run.path / name).unlink(missing_ok=True)
        (run.path / name).mkdir()
        with pytest.raises(UserError, match=rf"{name} is a folder, expected a file; move it away"):
            resume(run.path)

    def test_a_folder_in_place_of_the_link(self, run):
        (run.checkpoints / "last").unlink()
        (run.checkpoints / "last").mkdir()
        with pytest.raises(UserError, match="last is not a link to the newest checkpoint"):
            resume(run.path)

    def test_metrics_with_damaged_lines_and_values(self, run):
        lines = (run.path / "metrics.jsonl").read_bytes().splitlines()
        wrong = [
            b"\xff\xfe",
            b"[1]",
            b'{"step": "2"}',
            b'{"step": true}',
            b"[" * 100_000,
            b'{"step": -1}',
            b'{"step": 1',
        ]
        odd = b'{"step": 4, "loss": "high", "knn": NaN, "lr": 1e999, "images_per_second": 0, "warning": 5, "epoch": 1}'
        (run.path / "metrics.jsonl").write_bytes(b"\n".join([lines[0], *wrong, *lines[1:], odd, lines[0]]))
        records = run.metrics()
        assert [record["step"] for record in records] == [1, 2, 3, 4, 4]
        assert records[-1] == {"step": 4, "epoch": 1}
        stopped_at(run, 2)
        resume(run.path)
        assert [record["step"] for record in run.metrics()] == [1, 2, 3, 4]

    def test_a_recipe_of_another_version_is_refused_by_name(self, run):
        path, environment = run.path / "config.yaml", run.path / "environment.json"
        environment.write_text(environment.read_text().replace('"asterism": "0.1.0"', '"asterism": "0.0.3"'))
        path.write_text(path.read_text().replace("lr_scaling:", "lr_rule:"))
        with pytest.raises(UserError, match=r"does not fit Asterism 0\.1.*made by version 0\.0\.3\): .*optim\.lr_rule"):
            resume(run.path)


def test_a_run_of_a_command_that_is_not_installed_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("novelty: {}\n")
    with pytest.raises(UserError, match="is a run of another package's command, which is not installed"):
        kind_of(tmp_path)
    with pytest.raises(UserError, match="is a run of another kind, where a run of `asterism pretrain` is needed"):
        open_pretrained(tmp_path)
