"""The code in the documentation runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"


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
