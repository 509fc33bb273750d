"""The code in the documentation runs unchanged."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from asterism.cli import app
from tests.evals.samples import write_colours
from tests.nn.weights.family_cases import CASES

DOCS = Path(__file__).parents[1] / "docs"

# The guide to adapting a network, with a small network, small views and two steps.
SMALL_RUN = [
    *["backbone.image_size=24", "trainer.steps=2", "trainer.batch_size=4", "trainer.accelerator=cpu"],
    *["trainer.devices=1", "data.workers=0", "method.out_dim=8", "method.hidden_dim=8"],
    *["method.bottleneck_dim=4", "method.local_views=1"],
]


def test_own_loops_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "own-loop.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {"__name__": "own_loop"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in blocks:
            exec(compile(block, "own-loop.md", "exec"), names)
    shown = capsys.readouterr().out
    before, after = (float(value) for value in re.findall(r"KoLeo (\S+) → (\S+)", shown)[0])
    assert after < before
    assert float(re.findall(r"training accuracy (\S+)", shown)[0]) > 0.5
    assert (tmp_path / "encoder.safetensors").is_file()


def test_the_guide_to_adapting_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, _ = CASES["DINOv2, registers"].write(tmp_path)
    path.rename("dinov2_vits14_pretrain.pth")
    write_colours(tmp_path / "labelled", 5)
    write_colours(tmp_path / "photos", 3)
    guide = (DOCS / "adapt.md").read_text(encoding="utf-8")
    block = re.findall(r"```\n(asterism pretrain adapt.*?)```", guide, re.DOTALL)
    commands = [line.split()[1:] for line in block[0].strip().splitlines()]
    assert [command[0] for command in commands] == ["pretrain", "evaluate", "evaluate"]
    for command in commands:
        more = SMALL_RUN if command[0] == "pretrain" else ["knn.k=[3]"]
        heads = ["-w", "heads=4"] if "dinov2_vits14_pretrain.pth" in command else []
        result = CliRunner().invoke(app, [*command, *heads, *more])
        assert result.exit_code == 0, result.output
    for folder in ("before", "runs/adapted/eval"):
        assert list((tmp_path / folder).glob("knn*.json"))
