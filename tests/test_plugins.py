"""What another package adds works by its name: `tests/plugin_package`, found through its metadata alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "plugin_package"
SMALL = [
    *["backbone.image_size=16", "backbone.patch_size=8", "backbone.dim=32", "backbone.depth=1"],
    *["trainer.steps=4", "trainer.batch_size=8", "trainer.accelerator=cpu", "data.workers=0"],
    *["monitor.knn=null", "checkpoint.every_steps=2"],
]
# Runs commands one after the other, and prints the exit code and the output of each.
PROGRAM = """
import json, sys
from typer.testing import CliRunner
from asterism.cli import app
results = [CliRunner().invoke(app, words) for words in json.load(sys.stdin)]
print(json.dumps([[result.exit_code, result.output] for result in results]))
"""


def run(commands: list[list[str]], folder: Path) -> list[tuple[int, str]]:
    path = os.pathsep.join([str(PACKAGE), str(PACKAGE.parents[1])])
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [(code, output) for code, output in json.loads(done.stdout.splitlines()[-1])]


def test_what_a_package_adds_is_listed_and_its_command_runs(tmp_path: Path) -> None:
    listed = run([["list", kind] for kind in ("methods", "protocols", "datasets")] + [["--help"]], tmp_path)
    for (code, output), name in zip(listed, ("constant", "brightness", "few-scenes", "greet"), strict=True):
        assert code == 0, output
        assert name in output
    assert "A method whose features approach a constant." in listed[0][1]
    (code, output), (mistake, message) = run([["greet", "Ada"], ["finetune", "x", "--task", "gone"]], tmp_path)
    assert (code, output.strip()) == (0, "Hello, Ada")
    assert mistake == 2
    assert "'gone' of the package star-package cannot be loaded" in message


@pytest.mark.slow
def test_a_method_a_protocol_and_an_export_of_a_package(tmp_path: Path) -> None:
    """The method has no recipe, so it trains with its defaults."""
    pretrain = ["pretrain", "constant", "--data", "few-scenes", "--out", "run", *SMALL]
    code, output = run([[*pretrain, "method.target=2.0"]], tmp_path)[0]
    assert code == 0, output
    step = tmp_path / "run/checkpoints/step-00000004"
    for file in step.iterdir():
        file.unlink()
    step.rmdir()
    results = run(
        [
            ["pretrain", "--resume", "run"],
            ["evaluate", "run", "--data", "few-scenes", "--protocols", "brightness"],
            ["export", "run", "--to", "plain", "--out", "plain"],
            [*pretrain, "--overwrite", "method.targett=1"],
            ["export", "run", "--to", "plane", "--out", "plain"],
        ],
        tmp_path,
    )
    for code, output in results[:3]:
        assert code == 0, output
    assert step.is_dir()
    assert (tmp_path / "run/eval/brightness.json").is_file()
    assert (tmp_path / "plain/plain.pt").is_file()
    assert "unknown setting 'method.targett'; did you mean 'method.target'" in results[3][1]
    assert "unknown export target 'plane'; did you mean 'plain'" in results[4][1]
