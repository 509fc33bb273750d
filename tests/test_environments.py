"""Commands do the same whatever else is installed or set: launchers that are not used, locales, homes, warnings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from asterism.config import write_yaml
from tests.train.tiny import tiny_recipe

_COMMANDS = """
import shlex, sys
from asterism.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["asterism", *shlex.split(line)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{line}: exit code {ended.code}")
"""
_LINES = """\
list methods
pretrain recipe.yaml --data photos --out run
evaluate run --data photos --protocols knn knn.k=2
embed run --data photos --out photos.npz
search run --index photos.npz --query photos/red/0.png --out found.html
finetune run --task probe --data photos --out probe trainer.steps=2 trainer.batch_size=4 data.workers=1
predict probe --images photos --out predicted.csv
report run
export run --to safetensors --out exported
"""
_ALLOCATION = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2"}
ENVIRONMENTS: dict[str, Mapping[str, str | None]] = {
    "srun on the path": {},
    "an allocation without srun": _ALLOCATION,
    "srun of one task": _ALLOCATION | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    "a part of torchrun's variables": {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "nowhere"},
    "ASCII": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TZ": "Asia/Kathmandu"},
    "no home": {"HOME": "/proc/none", "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None},
    "warnings are errors": {"PYTHONWARNINGS": "error"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_commands(name: str, tmp_path: Path) -> None:
    for label, colour in (("red", (200, 30, 20)), ("blue", (20, 30, 200))):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (20, 20), colour).save(tmp_path / "photos" / label / f"{number}.png")
    (tmp_path / "recipe.yaml").write_text(write_yaml(tiny_recipe("mae", monitor={"tensorboard": True})))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/srun").chmod(0o755)
    path = f"{tmp_path / 'bin'}:" * (name == "srun on the path") + os.environ["PATH"]
    environment = {**os.environ, **ENVIRONMENTS[name], "PATH": path}
    ended = subprocess.run(
        [sys.executable, "-c", _COMMANDS],
        input=_LINES,
        cwd=tmp_path,
        env={key: value for key, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "srun" not in ended.stderr
    assert "Warning" not in ended.stderr
    assert "Traceback" not in ended.stderr
