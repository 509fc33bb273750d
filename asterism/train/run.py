"""A run folder: the files that training writes, and how to read them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from asterism.config import read_yaml, write_yaml
from asterism.errors import UserError
from asterism.nn.weights.load import load_encoder
from asterism.train.metrics import read_metrics

if TYPE_CHECKING:
    from asterism.nn.encoder import Encoder
    from asterism.train.recipe import Recipe

_PACKAGES = ("asterism", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "pillow", "safetensors")


@dataclass(frozen=True)
class Run:
    """A folder with configuration, environment, metrics, checkpoints, weights, evaluations and report."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.path / "encoder.safetensors"

    @property
    def config(self) -> dict[str, Any]:
        """The resolved recipe, as a mapping."""
        return read_yaml(self.path / "config.yaml")

    def metrics(self) -> list[dict[str, Any]]:
        """The logged metrics, one record per logged step."""
        return read_metrics(self.path)

    def has_results(self) -> bool:
        """Whether it contains more than the files that every new run writes."""
        return any((self.path / name).exists() for name in ("checkpoints", "bad_images.jsonl")) or bool(self.metrics())

    def encoder(self) -> Encoder:
        return load_encoder(self.path)


def open_run(path: Path | str) -> Run:
    """Open an existing run; the error says what is missing."""
    run = Run(Path(path))
    if not (run.path / "config.yaml").is_file():
        problem = "no such folder" if not run.path.exists() else "it has no config.yaml"
        raise UserError(f"{run.path} is not a run ({problem}); give a folder written by `asterism pretrain --out`")
    return run


def check_free(out: Path, overwrite: bool) -> None:
    """Refuse to overwrite anything; with `overwrite`, anything but an existing run or an empty folder."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not overwrite:
        raise UserError(
            f"{out} already exists; resume it with --resume {out}, replace it with --overwrite, or choose another --out"
        )
    if not (out / "config.yaml").is_file():
        raise UserError(f"{out} exists and is not a run folder, so --overwrite cannot replace it; choose another --out")


def create_run(out: Path, recipe: Recipe, overwrite: bool) -> Run:
    """A new run folder with its resolved configuration."""
    check_free(out, overwrite)
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "environment.json").write_text(json.dumps(_environment(), indent=2) + "\n")
    (out / "config.yaml").write_text(write_yaml(recipe), encoding="utf-8")
    return Run(out)


def _environment() -> dict[str, Any]:
    """Versions and hardware, to explain why the same recipe gave different numbers elsewhere."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or [platform.machine()],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
