"""A run folder: the files that training writes, and how to read them."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from asterism.config import Config, read_yaml, with_overrides, write_yaml
from asterism.errors import UserError
from asterism.files import discard, is_temporary, write_text
from asterism.lock import LOCK_NAME
from asterism.methods import METHOD_FILE
from asterism.methods.base import UnopenedConfig
from asterism.nn.weights.load import load_encoder
from asterism.train.checkpoint import steps
from asterism.train.metrics import read_metrics

if TYPE_CHECKING:
    import asterism.train.recipe
    from asterism.nn.encoder import Encoder
    from asterism.train.recipe import Recipe

R = TypeVar("R", bound="asterism.train.recipe.RunRecipe")

_ENVIRONMENT, _CONFIG = "environment.json", "config.yaml"
# that training writes
_FILES = (
    _CONFIG,
    _ENVIRONMENT,
    METHOD_FILE,
    "metrics.jsonl",
    "bad_images.jsonl",
    "encoder.safetensors",
    "model.safetensors",
    "alignment.safetensors",
)
_PACKAGES = ("asterism", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "numba", "pillow", "safetensors")


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
    def start(self) -> Path:
        """The encoder that the run started from, if it may be kept."""
        return self.path / "start" / "encoder.safetensors"

    @property
    def config(self) -> dict[str, Any]:
        """The resolved recipe, as a mapping whose values are valid."""
        return self.recipe.model_dump(mode="json")

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        from asterism.train.recipe import Recipe

        return open_pretrained(self.path).read(Recipe)

    def read(self, kind: type[R]) -> R:
        """The resolved recipe of a run of this kind. A method's file, which may be somebody else's, is not run."""
        path = self.path / _CONFIG
        try:
            recipe = kind.parse(_unopened(self._written()))
        except UserError as error:
            raise UserError(
                f"{path} does not fit Asterism {_version('asterism')} (the run was made by {self._made_by()}): {error}"
            ) from None
        if missing := recipe.unresolved():
            raise UserError(f"{path} lacks {' and '.join(missing)}, which every run records; restore them")
        return recipe

    def read_to_resume(self, kind: type[R], overrides: Sequence[str]) -> R:
        """The recipe with `section.key=value` changes; a method's file is run."""
        self.read(kind)  # its errors name the file
        return kind.parse(with_overrides(self._written(), overrides))

    def _written(self) -> dict[str, Any]:
        """The recipe as written; a method's file is this run's copy."""
        values = read_yaml(self.path / _CONFIG)
        method = values.get("method")
        if not isinstance(method, Mapping) or not isinstance(method.get("file"), Mapping):
            return values
        return values | {"method": {**method, "file": {**method["file"], "path": str(self.path / METHOD_FILE)}}}

    @property
    def environment(self) -> dict[str, Any] | None:
        """Versions and hardware; None if the file is missing or damaged, because nothing depends on it."""
        try:
            values = json.loads((self.path / _ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return values if isinstance(values, dict) else None

    def metrics(self) -> list[dict[str, Any]]:
        """The logged metrics, one record per logged step."""
        return read_metrics(self.path)

    def is_of_this_launcher(self) -> bool:
        """Whether the run was started by the same torchrun as this process, before it restarted its processes."""
        return (self.environment or {}).get("launcher") == _launcher()

    def check_files(self) -> None:
        """Refuse a run with folders in place of files, before hours of training fail to write one of them."""
        for name in _FILES:
            if (self.path / name).is_dir():
                raise UserError(f"{self.path / name} is a folder, expected a file; move it away")
        if self.checkpoints.exists() and not self.checkpoints.is_dir():
            raise UserError(f"{self.checkpoints} is a file, expected a folder; move it away")
        last = self.checkpoints / "last"
        if last.exists() and not last.is_symlink():
            raise UserError(f"{last} is not a link to the newest checkpoint; move it away")

    def has_results(self) -> bool:
        """Whether there is a checkpoint to resume from, or a list of images that could not be read."""
        return bool(steps(self.checkpoints)) or (self.path / "bad_images.jsonl").exists()

    def summary(self) -> str:
        return (
            f"Finished: {self.path}\n"
            f"Next:     asterism evaluate {self.path} --data LABELLED/  or  asterism report {self.path}"
        )

    @property
    def origin(self) -> str:
        """How the model was made, for its card."""
        return str(self.config["method"]["name"])

    def encoder(self) -> Encoder:
        return load_encoder(self.path)

    def data_path(self) -> str:
        """Where the images are that the run was trained on."""
        data = read_yaml(self.path / _CONFIG).get("data")
        path = data.get("path") if isinstance(data, dict) else None
        if not isinstance(path, str):
            raise UserError(f"{self.path / _CONFIG} has no data.path; restore it, or give --data")
        return path

    def _made_by(self) -> str:
        packages = (self.environment or {}).get("packages")
        version = packages.get("asterism") if isinstance(packages, dict) else None
        return f"version {version}" if isinstance(version, str) else "an unknown version"


def _unopened(values: dict[str, Any]) -> dict[str, Any]:
    method = values.get("method")
    if not isinstance(method, Mapping) or not isinstance(method.get("file"), Mapping):
        return values
    return values | {"method": UnopenedConfig.parse(method, "method")}


def is_finetuned(path: Path) -> bool:
    """Whether a folder is a run of `asterism finetune`: its recipe has a task."""
    config = path / _CONFIG
    return config.is_file() and "task" in read_yaml(config)


def is_pretrained(path: Path) -> bool:
    """Whether a folder is a run of `asterism pretrain`: its recipe has a method."""
    config = path / _CONFIG
    return config.is_file() and "method" in read_yaml(config)


def open_run(path: Path | str) -> Run:
    """Open an existing run; the error says what is missing."""
    run = Run(Path(path))
    if not (run.path / "config.yaml").is_file():
        problem = "no such folder" if not run.path.exists() else "it has no config.yaml"
        raise UserError(f"{run.path} is not a run ({problem}); give a folder written by `asterism pretrain --out`")
    return run


def open_pretrained(path: Path | str) -> Run:
    """Open an existing run of `asterism pretrain`; the error says what it is instead."""
    run = open_run(path)
    if not is_pretrained(run.path):
        kind = "a fine-tuned run" if is_finetuned(run.path) else "a run of another kind"
        raise UserError(f"{run.path} is {kind}, where a run of `asterism pretrain` is needed")
    return run


def check_free(out: Path, overwrite: bool) -> None:
    """Refuse to overwrite anything; with `overwrite`, anything but an existing run or an empty folder.

    A process that was killed before its recipe was written leaves a folder that counts as empty.
    """
    if not out.exists() or (out.is_dir() and all(map(is_temporary, _contents(out)))):
        return
    if not overwrite:
        resuming = f"resume it with --resume {out}, " if steps(out / "checkpoints") else ""
        raise UserError(f"{out} already exists; {resuming}replace it with --overwrite, or choose another --out")
    if not (out / _CONFIG).is_file():
        raise UserError(f"{out} exists and is not a run folder, so --overwrite cannot replace it; choose another --out")


def create_run(out: Path, recipe: Config) -> Run:
    """A new run in the folder `out`, which this process owns, with its resolved recipe; other content is deleted.

    The recipe is written first: it makes the folder a run, which may be overwritten if this process is killed now.
    """
    empty(out)
    write_text(out / _CONFIG, write_yaml(recipe))
    for name, text in recipe.kept_texts().items():
        write_text(out / name, text)
    write_text(out / _ENVIRONMENT, json.dumps(_environment(), indent=2) + "\n")
    return Run(out)


def empty(folder: Path) -> None:
    """Delete the content of a run folder, except for its lock; last the file that makes it a run."""
    for path in sorted(_contents(folder), key=lambda path: path.name == _CONFIG):
        discard(path)


def _contents(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name != LOCK_NAME)


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
        "launcher": _launcher(),
    }


def _launcher() -> list[str | int] | None:
    """Torchrun's process, which remains while it restarts others."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return [socket.gethostname(), os.getppid(), os.environ["TORCHELASTIC_RUN_ID"]]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
