"""The command line: what it prints, its exit codes, and what it leaves on disk after an error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from asterism import api, cli
from asterism.cli.program import COMMANDS
from asterism.errors import Interrupted, UserError
from asterism.evals import protocol_names
from asterism.evals.result import DataUsed, Scores
from asterism.evals.result import Result as EvaluationResult
from asterism.methods import method_names
from asterism.nn.weights.packaged import packaged_models
from asterism.plugins import plugins
from asterism.tools.choices import entries, kinds
from asterism.train.run import Run
from asterism.types import Model
from tests.campaigns import materials
from tests.evals.samples import small_encoder, write_colours
from tests.packaged_samples import ship

HEAVY = "torch timm torchvision lightning_fabric lightning pandas pyarrow numpy"  # typer brings pydantic
DINO = materials.DINO.split()


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ASTERISM_DEBUG", raising=False)


@pytest.fixture
def labelled() -> Path:
    return write_colours(Path("labelled"), 5)


@pytest.fixture
def weights() -> Path:
    return small_encoder().save("weights.safetensors", step=7)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def refused(result: Result) -> str:
    """The message of a user's mistake: exit code 2, the message on stderr, no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def everything_here() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


# --- help and lists -------------------------------------------------------------------------------------------------


def test_help_and_lists_import_nothing_heavy() -> None:
    script = """
import sys
from asterism.cli import app
for words in (["--help"], ["pretrain", "--help"], ["list", "methods"], ["list", "recipes"], ["list", "datasets"],
              ["list", "protocols"], ["list", "models", "tiny"], ["--version"]):
    app(words, standalone_mode=False)
    print(words, "imported", *sorted(set(sys.argv[1:]) & set(sys.modules)), file=sys.stderr)
"""
    place = os.environ | {"COLUMNS": "200"}
    words = [sys.executable, "-c", script, *HEAVY.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=place)
    lines = done.stderr.splitlines()
    assert len(lines) == 8
    assert all(line.endswith("imported") for line in lines), done.stderr
    assert "vit_tiny_patch16_224" in done.stdout


@pytest.mark.parametrize("command", sorted({*COMMANDS, *plugins("commands")}))
def test_every_command_explains_itself(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert command == "demo" or f"asterism {command} " in result.output.partition("Examples:")[2]


def test_lists_are_complete() -> None:
    from asterism.data import dataset_names
    from asterism.finetuning.recipe import finetune_recipe_names
    from asterism.train.recipe import recipe_names

    assert list(entries("methods")) == method_names()
    assert list(entries("recipes")) == [*recipe_names(), *finetune_recipe_names()]
    assert list(entries("datasets")) == list(dataset_names())
    assert list(entries("protocols")) == protocol_names()
    for kind in ("methods", "recipes", "datasets", "protocols"):
        assert all(entries(kind).values()), f"every one of the {kind} has a summary"


def test_listed_models_exist_in_timm() -> None:
    import timm

    assert set(entries("models")) <= {*timm.list_models(), *packaged_models()}
    assert {"vit_small_patch16_224", "swin_tiny_patch4_window7_224"} <= set(entries("models"))


def test_an_unknown_list_names_near_ones() -> None:
    assert "did you mean 'models'" in refused(call("list", "modles"))
    assert set(kinds()) == {"methods", "tasks", "recipes", "studies", "datasets", "protocols", "models"}


# --- from training to a report ---------------------------------------------------------------------------------------


def test_pretrain_evaluate_embed_report(labelled: Path) -> None:
    trained = call("pretrain", *DINO, "--data", labelled, "--out", "run")
    assert trained.exit_code == 0, trained.output
    assert "asterism evaluate run" in trained.stdout

    evaluated = call("evaluate", "run", "--data", labelled, "--protocols", "knn", "--baselines", "knn.k=3")
    assert evaluated.exit_code == 0, evaluated.output
    content = json.loads(Path("run/eval/knn.json").read_text())
    assert content["model"] == {"name": "run", "step": 2}
    assert content["constants"]["k"] == [3]
    assert set(content["baselines"]) == {"untrained", "pixels"}
    assert "top1_k3" in evaluated.stdout
    assert "held out" in evaluated.stdout

    embedded = call("embed", "run", "--data", labelled, "--out", "vectors.npz")
    assert embedded.exit_code == 0, embedded.output
    assert "15 images of labelled × 16 dimensions" in embedded.stdout

    reported = call("report", "run")
    assert reported.exit_code == 0, reported.output
    assert Path(reported.stdout.strip()).read_text().startswith("<!doctype html>")

    again = call("pretrain", "--resume", "run")
    assert again.exit_code == 0, again.output
    assert "finished" in again.output


def test_overrides_can_be_anywhere(labelled: Path) -> None:
    result = call("pretrain", "--data", labelled, "dino", "--out", "run", *DINO[1:], "optim.lr=3e-4")
    assert result.exit_code == 0, result.output
    assert "lr: 0.0003" in Path("run/config.yaml").read_text()


def test_a_run_is_evaluated_on_its_own_data(labelled: Path) -> None:
    assert call("pretrain", *DINO, "--data", labelled, "--out", "run").exit_code == 0
    assert call("evaluate", "run", "knn.k=3").exit_code == 0
    assert json.loads(Path("run/eval/knn.json").read_text())["test"]["images"] == 3


def test_the_demo_trains_evaluates_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Run(Path("shown")), []
    ship(tmp_path / "shipped", monkeypatch)

    def evaluate(model: Run | str, data: str, protocol: str, *, against: Sequence[str] = (), **words: object) -> Scores:
        calls.append(" against ".join([f"{model} {protocol}" if model == "nano" else protocol, *against]))
        used = DataUsed(data, 10, "")
        return Scores({protocol: EvaluationResult(protocol, {"top1_k20": 31.4}, {}, Model("shown"), used, used, 0.0)})

    monkeypatch.setattr(api, "pretrain", lambda **words: calls.append(words["recipe"]) or run)
    monkeypatch.setattr(api, "evaluate", evaluate)
    monkeypatch.setattr(api, "report", lambda run: run.path / "report.html")
    result = call("demo", "--out", "shown")
    assert result.exit_code == 0, result.output
    assert calls == ["nano knn", "demo", "knn against nano", "reconstruction", "dense-nn against nano"]
    assert "With no training, nano names 31.4 %" in result.stdout
    assert result.stdout.count("shown ") == 1, "one table"
    assert result.stdout.endswith(f"Report: {Path('shown').resolve() / 'report.html'}\n")


def test_other_models_are_measured_beside(
    labelled: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(tmp_path / "shipped", monkeypatch)
    call("evaluate", weights, "--data", labelled, "knn.k=3", "--out", "results", "--against", "nano", "--baselines")
    beside = json.loads(Path("results/knn.json").read_text())["baselines"]
    assert list(beside) == ["untrained", "pixels", "nano"]
    alone = api.evaluate("nano", labelled, knn={"k": 3})["knn"].values
    assert beside["nano"] == alone


def test_weights_without_a_run_are_only_shown(labelled: Path, weights: Path) -> None:
    before = everything_here()
    result = call("evaluate", weights, "--data", labelled, "knn.k=3")
    assert result.exit_code == 0, result.output
    assert "top1_k3" in result.stdout
    assert everything_here() == before
    assert call("evaluate", weights, "--data", labelled, "knn.k=3", "--out", "results").exit_code == 0
    assert json.loads(Path("results/knn.json").read_text())["model"]["step"] == 7


def test_names_with_brackets_are_shown_as_they_are() -> None:
    write_colours(Path("photos [red]"), 3)
    result = call("evaluate", "pixels", "--data", "photos [red]", "knn.k=2")
    assert "photos [red]" in result.stdout
    assert "no such file or folder: ./[bold]" in refused(call("evaluate", "pixels", "--data", "./[bold]"))


# --- mistakes -------------------------------------------------------------------------------------------------------

# What is wrong, a command line, and a part of the message; DINO stands for a small run of DINO.
MISTAKES: dict[str, tuple[str, str]] = {
    "missing folder": ("pretrain DINO --data nowhere/at/all", "no such file or folder: nowhere/at/all"),
    "empty folder": ("pretrain DINO --data empty", "no images in empty"),
    "no data": ("pretrain DINO", "give --data FOLDER"),
    "unknown method": ("pretrain dinoo --data labelled", "unknown method or recipe 'dinoo'; did you mean 'dino'"),
    "unknown key": ("pretrain DINO --data labelled optim.lrr=1", "'optim.lrr'; did you mean 'optim.lr'"),
    "unknown section": ("pretrain DINO --data labelled optm.lr=1", "did you mean 'optim'"),
    "unreadable override": ("pretrain DINO --data labelled fast", "cannot read override 'fast'"),
    "value of another kind": ("pretrain DINO --data labelled optim.lr=fast", "optim.lr = 'fast'"),
    "missing recipe": ("pretrain mine.yaml --data labelled", "no such file: mine.yaml"),
    "nothing to train": ("pretrain --data labelled", "give one method or recipe"),
    "existing output": ("pretrain DINO --data labelled --out labelled", "labelled already exists"),
    "overwriting something else": (
        "pretrain DINO --data labelled --out labelled --overwrite",
        "is not a run folder, so --overwrite cannot replace it",
    ),
    "no such device": (
        "pretrain DINO --data labelled trainer.accelerator=cuda",
        "trainer.accelerator = 'cuda', but torch finds no such device",
    ),
    "batch too large": (
        "pretrain DINO --data labelled trainer.batch_size=16",
        "trainer.batch_size = 16 is larger than the data set (15 images)",
    ),
    "weights of another shape": (
        "pretrain DINO --data labelled --init weights.safetensors backbone.dim=24",
        "weights.safetensors",
    ),
    "missing weights": ("pretrain DINO --data labelled --init no.safetensors", "no.safetensors"),
    "resume nothing": ("pretrain --resume nowhere", "nowhere is not a run (no such folder)"),
    "resume something else": ("pretrain --resume labelled", "labelled is not a run (it has no config.yaml)"),
    "resume and a method": ("pretrain dino --resume nowhere", "--resume continues a run as it is"),
    "evaluate nothing": ("evaluate nowhere/run --data labelled", "nowhere/run"),
    "evaluate without data": ("evaluate weights.safetensors", "no data given"),
    "evaluate on a missing folder": ("evaluate weights.safetensors --data no/where", "no such file or folder"),
    "evaluate without labels": ("evaluate weights.safetensors --data labelled/red", "red has no labels"),
    "unknown protocol": ("evaluate weights.safetensors --data labelled -p knnn", "did you mean 'knn'"),
    "no protocol": ("evaluate weights.safetensors --data labelled -p ,", "at least one protocol"),
    "unknown constant": ("evaluate weights.safetensors --data labelled knn.kk=2", "did you mean 'knn.k'"),
    "constant of another protocol": ("evaluate weights.safetensors --data labelled kn.k=2", "'kn'"),
    "unknown split": (
        "evaluate weights.safetensors --data labelled --test-split holdout",
        "there is no split 'holdout'",
    ),
    "no such device for evaluate": (
        "evaluate weights.safetensors --data labelled --device cuda",
        "device 'cuda' is not available to torch",
    ),
    "unknown device": ("evaluate weights.safetensors --data labelled --device gpu", "unknown device 'gpu'"),
    "no concepts": ("evaluate weights.safetensors --data labelled knn.feature=sparse", "no concept tokens"),
    "embed nothing": ("embed weights.safetensors --data empty --out x.npz", "no images in empty"),
    "embed to another format": (
        "embed weights.safetensors --data labelled --out x.csv",
        "must end in .parquet or .npz",
    ),
    "embed over a file": (
        "embed weights.safetensors --data labelled --out taken.npz",
        "taken.npz exists already; replace it with --overwrite",
    ),
    "broken weights": ("embed broken.safetensors --data labelled --out x.npz", "broken.safetensors"),
    "report on nothing": ("report nowhere", "nowhere is not a run"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_explained_and_leave_nothing(mistake: str, labelled: Path, weights: Path) -> None:
    line, message = MISTAKES[mistake]
    words = [part for word in line.split() for part in (DINO if word == "DINO" else [word])]
    if "cuda" in line and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    Path("empty").mkdir()
    Path("taken.npz").write_text("precious")
    Path("broken.safetensors").write_bytes(b"\0" * 20)
    before = everything_here()
    said = refused(call(*words))
    assert message in said
    assert everything_here() == before
    assert Path("taken.npz").read_text() == "precious"


def test_a_recipe_that_was_edited_after_a_checkpoint(labelled: Path) -> None:
    assert call("pretrain", *DINO, "--data", labelled, "--out", "run", "checkpoint.every_steps=1").exit_code == 0
    config = Path("run/config.yaml")
    state = next(Path("run/checkpoints").glob("step-*1"))
    for later in Path("run/checkpoints").glob("step-*2"):
        for file in later.iterdir():
            file.unlink()
        later.rmdir()
    assert state.is_dir()
    config.write_text(config.read_text().replace("out_dim: 32", "out_dim: 48"))
    said = refused(call("pretrain", "--resume", "run"))
    assert "method.out_dim is 48, but was 32" in said
    assert "--init" in said


def test_unreadable_images_are_recorded_next_to_the_embeddings(labelled: Path, weights: Path) -> None:
    (labelled / "red" / "001.png").write_bytes(b"cut off")
    result = call("embed", weights, "--data", labelled, "--out", "vectors.npz")
    assert result.exit_code == 0
    assert "skipped 1 unreadable images, see vectors.bad_images.jsonl" in result.stderr
    assert json.loads(Path("vectors.bad_images.jsonl").read_text())["key"] == "red/001.png"


def raising(error: BaseException, command: Callable[..., object] = api.embed) -> Callable[..., None]:
    @wraps(command)
    def work(*_: object, **__: object) -> None:
        raise error

    return work


def test_a_full_disk_is_explained(labelled: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything_here()
    monkeypatch.setattr("asterism.index.write.zipfile.ZipFile", raising(OSError(28, "No space left on device")))
    said = refused(call("embed", weights, "--data", labelled, "--out", "vectors.npz"))
    assert said.startswith("Error: the disk is full")
    assert everything_here() == before


def test_a_forbidden_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "embed", raising(PermissionError(13, "Permission denied", "/root/x.npz")))
    assert "no permission for /root/x.npz" in refused(call("embed", "w.safetensors", "--data", "labelled"))


def test_ctrl_c_ends_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "embed", raising(KeyboardInterrupt()))
    result = call("embed", "w.safetensors", "--data", "labelled")
    assert result.exit_code == 130
    assert "--resume" in result.stderr


def test_a_stopped_training_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        api, "pretrain", raising(Interrupted("stopped at step 3; resume with --resume run", 15), api.pretrain)
    )
    result = call("pretrain", "dino")
    assert result.exit_code == 143
    assert "resume with --resume run" in result.stderr


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTERISM_DEBUG", "1")
    assert isinstance(call("list", "modles").exception, UserError)


def test_an_internal_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "embed", raising(ZeroDivisionError("ours")))
    result = call("embed", "w.safetensors", "--data", "labelled")
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


def test_messages_are_readable_in_a_pipe(labelled: Path) -> None:
    """The real program: one line on stderr, nothing on stdout, no colour codes, exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "asterism", "list", "modles"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: unknown list 'modles'; did you mean 'models' or 'methods'?\n"


def test_options_of_weights(labelled: Path, tmp_path: Path) -> None:
    """A file that does not say how it was trained: the words are the same on every command."""
    torch.save(small_encoder().backbone.network.state_dict(), "bare.pth")
    options = ["-w", "heads=2", "--weights-option", "mean=0", "-w", "std=1", "-w", "image_size=24"]
    assert call("embed", "bare.pth", "--data", labelled, "--out", "e.npz", *options).exit_code == 0
    search = ["search", "bare.pth", "-i", "e.npz", "-q", next(labelled.rglob("*.png"))]
    assert call(*search, *options).exit_code == 0
    assert "another model" in refused(call(*search, "-w", "heads=1", "--overwrite"))
    assert "did you mean 'heads'" in refused(call("embed", "bare.pth", "--data", labelled, "-w", "head=2"))
    assert "describe the weights of --init" in refused(call("pretrain", "dino", "--data", labelled, "-w", "heads=2"))
    commands = ("evaluate", "embed", "concepts", "reconstruct", "track", "segment", "search", "explore", "export")
    for command in (*commands, "pretrain"):
        assert {"--weights-option", "--keys"} <= set(call(command, "--help").output.split())


def test_tensors_with_other_names_are_renamed(labelled: Path) -> None:
    plain = small_encoder().backbone.network.state_dict()
    torch.save({name.replace("blocks.", "layers."): tensor for name, tensor in plain.items()}, "theirs.pth")
    options = ["--keys", r"layers\.(\d+)=blocks.\1", "-w", "heads=2", "-w", "mean=0", "-w", "std=1"]
    assert call("embed", "theirs.pth", "--data", labelled, "--out", "e.npz", *options).exit_code == 0


def test_warnings_are_shown_without_the_line_of_code() -> None:
    torch.save(small_encoder().backbone.network.state_dict(), "bare.pth")
    script = [sys.executable, "-m", "asterism", "export", "bare.pth", "--to", "safetensors", "--out", "x"]
    place = os.environ | {"PYTHONPATH": str(Path(api.__file__).parents[2])}
    ran = subprocess.run([*script, "-w", "heads=2"], capture_output=True, text=True, check=False, env=place)
    shown = " ".join(ran.stderr.split())
    assert shown.startswith("Warning: bare.pth does not state everything its features depend on. Assumed: eps=1e-06")
    assert ".py" not in shown
