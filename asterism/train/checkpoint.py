"""Checkpoints that stay valid when the process is killed at any moment.

A checkpoint is a folder `checkpoints/step-*` with safetensors for tensors and JSON for the rest. It is written under
a temporary name, flushed to disk and renamed, so a folder with its final name is always complete. `checkpoints/last`
is a link to the newest one and is replaced atomically.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError
from asterism.files import flush, replacing
from asterism.ops.sharding import placed_like, whole
from asterism.ranges import Count, Few, NonNegative

_NAME = re.compile(r"step-(\d+)")


class CheckpointConfig(Config):
    """How often to save, and which checkpoints to keep."""

    every_steps: Count | None = None  # None: once per epoch
    every_minutes: NonNegative | None = 30.0  # also when the last one is older than this
    keep_last: Few = 2
    keep_every: Count | None = None  # checkpoints at multiples of this many steps are kept permanently


@dataclass(frozen=True)
class State:
    """Everything that training needs to resume, as plain tensors and numbers."""

    step: int
    method: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    facts: dict[str, Any]  # steps, images and batch size of the run: these must not change on resume


def capture(method: nn.Module, optimizer: torch.optim.Optimizer, step: int, facts: dict[str, Any]) -> State:
    """Collect the state. With sharded parameters every process must call this, and each gets the full state."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in method.named_parameters()}
    moments = {
        f"{names[parameter]}.{key}": _gather(value)
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }
    return State(step, {k: _gather(v) for k, v in method.state_dict().items()}, moments, facts)


@torch.no_grad()
def restore(state: State, method: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore a captured state exactly."""
    targets = method.state_dict()
    _check_names(set(state.method), set(targets))
    for name, target in targets.items():
        value = state.method[name]
        if value.shape != target.shape:
            raise UserError(
                f"the checkpoint's {name} has shape {list(value.shape)}, but this configuration needs "
                f"{list(target.shape)}; resume with the configuration of the run, or start a new run with --init"
            )
        target.copy_(placed_like(value, target))
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in state.optimizer.items():
        owner, _, key = name.rpartition(".")
        moments.setdefault(owner, {})[key] = value
    for name, parameter in method.named_parameters():
        if name in moments:
            optimizer.state[parameter] = {
                key: value.clone() if value.ndim == 0 else placed_like(value, parameter)
                for key, value in moments[name].items()
            }


def write(state: State, folder: Path, config: CheckpointConfig) -> Path:
    """Write `folder/step-*`, point `folder/last` at it, and remove checkpoints that are not to be kept."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{state.step:08d}"
    if final.exists():
        return final
    temporary = folder / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for name, tensors in (("method", state.method), ("optimizer", state.optimizer)):
        with replacing(temporary / f"{name}.safetensors") as path:
            save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    with replacing(temporary / "state.json") as path:
        path.write_text(json.dumps({"step": state.step, **state.facts}, indent=2))
    flush(temporary)
    temporary.rename(final)
    _point(folder / "last", final.name)
    flush(folder)
    _prune(folder, config)
    return final


def read(folder: Path) -> State:
    """The newest complete checkpoint in `folder`, or `folder` itself if it is a checkpoint."""
    path = folder if (folder / "state.json").exists() else latest(folder)
    if path is None:
        raise UserError(f"no checkpoint in {folder}; the run has not saved one yet")
    try:
        facts = json.loads((path / "state.json").read_text())
        method = load_file(path / "method.safetensors")
        optimizer = load_file(path / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot read the checkpoint {path}: {error}") from None
    return State(facts.pop("step"), method, optimizer, facts)


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, by name: a killed process may not have updated `last`."""
    found = steps(folder)
    return folder / f"step-{found[-1]:08d}" if found else None


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def _point(link: Path, target: str) -> None:
    temporary = link.with_name(".last.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _prune(folder: Path, config: CheckpointConfig) -> None:
    for step in steps(folder)[: -max(1, config.keep_last)]:
        if config.keep_every is None or step % config.keep_every:
            shutil.rmtree(folder / f"step-{step:08d}", ignore_errors=True)
    for leftover in folder.glob(".step-*.tmp"):
        with contextlib.suppress(OSError):
            shutil.rmtree(leftover)


def _check_names(saved: set[str], expected: set[str]) -> None:
    if saved != expected:
        missing, extra = sorted(expected - saved)[:3], sorted(saved - expected)[:3]
        raise UserError(
            "the checkpoint belongs to another configuration"
            + (f"; it lacks {', '.join(missing)}" if missing else "")
            + (f"; it has {', '.join(extra)} that this one does not" if extra else "")
        )


def _gather(value: Tensor) -> Tensor:
    """The full tensor on the CPU, also if it is sharded. A copy, because training continues while it is written."""
    return whole(value).detach().to("cpu", copy=True)
