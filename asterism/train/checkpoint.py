"""Checkpoints that stay valid when the process is killed at any moment, and that show when they are damaged.

A checkpoint is a folder `checkpoints/step-*` with safetensors for tensors and JSON for the rest. It is written under
a temporary name, flushed to disk and renamed, so a folder with its final name is always complete. `checkpoints/last`
is a link to the newest one and is replaced atomically. `checksums.txt` has the SHA-256 of the other files, in the
format of `sha256sum --check`; a checkpoint that does not match it is skipped in favour of the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from asterism.config import Config
from asterism.errors import UserError, reason_of
from asterism.files import delete_leftovers, discard, filling, flush_names
from asterism.nn.safetensors_file import write_tensors
from asterism.ops.sharding import placed_like, whole
from asterism.ranges import Count, Few, NonNegative

_NAME = re.compile(r"step-(\d{8,18})")
_FORMAT = 1  # 0: without checksums and recipe, in the first development versions
_METHOD, _OPTIMIZER, _STATE, _CHECKSUMS = "method.safetensors", "optimizer.safetensors", "state.json", "checksums.txt"
_LOG = "log.safetensors"  # not in checkpoints of version 0.1
_RETIRED = re.compile(r"\.lists\.(index|similarity|floor)$")  # caches that checkpoints of version 0.1 contain


class CheckpointConfig(Config):
    """How often to save, and which checkpoints to keep."""

    every_steps: Count | None = None  # None: once per epoch
    every_minutes: NonNegative | None = 30.0  # also when the last one is older than this
    keep_last: Few = 2
    keep_every: Count | None = None  # checkpoints at multiples of this many steps are kept permanently


class Facts(Config):
    """What a checkpoint records about its run. None of it may change on resume, except settings that cannot affect the
    result (`asterism.train.resuming`)."""

    steps: int | None = Field(ge=1, lt=2**63, strict=True)  # of the whole run; None if its length is given in minutes
    images: int = Field(ge=1, lt=2**63, strict=True)
    batch_size: int = Field(ge=1, lt=2**63, strict=True)
    data: str | None = None  # fingerprint of the images' names; None in format 0
    contents: str | None = None  # hash of parts of the images' files; None in version 0.1
    recipe: dict[str, Any] | None = None  # as resolved; None in format 0
    frozen_encoders: dict[str, str] = Field(default_factory=dict)  # their fingerprints, by the setting that names them


class _StateFile(Facts):
    """The content of `state.json`."""

    format: int = Field(default=0, ge=0, lt=2**31, strict=True)
    version: str | None = None  # of Asterism
    step: int = Field(ge=0, lt=2**63, strict=True)


@dataclass(frozen=True)
class State:
    """Everything that training needs to resume, as plain tensors and numbers."""

    step: int
    method: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    facts: Facts
    log: dict[str, Tensor] = field(default_factory=dict)  # what `Monitor` has not logged yet, and the time of `Clock`


class Damaged(Exception):
    """A checkpoint that cannot be used; the message says what is wrong with it."""


def capture(
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    facts: Facts,
    log: Mapping[str, Tensor] | None = None,
) -> State:
    """Collect the state. With sharded parameters every process must call this, and each gets the full state."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in method.named_parameters()}
    moments = {
        f"{names[parameter]}.{key}": _gather(value)
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }
    return State(step, {k: _gather(v) for k, v in method.state_dict().items()}, moments, facts, dict(log or {}))


@torch.no_grad()
def restore(state: State, method: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore a captured state exactly."""
    targets = method.state_dict()
    check_fit(state.method, targets)
    for name, target in targets.items():
        target.copy_(placed_like(state.method[name], target))
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


def not_finite(state: State, parameters: set[str]) -> list[str]:
    """The tensors that must not be saved. Buffers and moments may be infinite (an empty memory bank is), but not NaN.

    parameters: the names of the method's parameters.
    """
    broken = [name for name, value in state.method.items() if not _is_sound(value, finite=name in parameters)]
    return broken + [name for name, value in state.optimizer.items() if not _is_sound(value, finite=False)]


def write(state: State, folder: Path, config: CheckpointConfig) -> Path:
    """Write `folder/step-*`, point `folder/last` at it, and remove checkpoints that are not to be kept.

    After an error, such as a full disk, the earlier checkpoints are unchanged.
    """
    final = folder / f"step-{state.step:08d}"
    if final.exists():
        return final
    try:
        with filling(final) as temporary:
            _fill(temporary, state)
        _point(folder / "last", final.name)
        prune(folder, config)
    except OSError as error:
        before = steps(folder)
        kept = f"the checkpoint of step {before[-1]} is intact" if before else "there is no earlier checkpoint"
        raise UserError(
            f"cannot write the checkpoint of step {state.step} to {folder}: {reason_of(error)}; {kept}"
        ) from None
    return final


def read(folder: Path) -> State:
    """The newest intact checkpoint in `folder`, or `folder` itself if it is a checkpoint."""
    if _NAME.fullmatch(folder.name):
        try:
            verify(folder)
            return load(folder)
        except Damaged as error:
            raise UserError(f"cannot read the checkpoint {folder}: {error}") from None
    path, _ = newest_intact(folder)
    return load(path)


def newest_intact(folder: Path) -> tuple[Path, list[str]]:
    """The newest intact checkpoint, and a sentence about every newer one that is damaged.

    By name: a process that was killed may not have updated `last`.
    """
    problems: list[str] = []
    for step in reversed(steps(folder)):
        path = folder / f"step-{step:08d}"
        try:
            verify(path)
            return path, problems
        except Damaged as error:
            problems.append(f"{path} is damaged: {error}")
    if problems:
        raise UserError("; ".join(problems) + "; there is no intact checkpoint. Start a new run")
    raise UserError(
        f"no checkpoint in {folder}; the run has not saved one yet. Start it again: the same command with --overwrite"
    )


def newest_facts(folder: Path) -> Facts | None:
    """The facts of the newest checkpoint whose `state.json` is intact. Its large files are not read."""
    for step in reversed(steps(folder)):
        path = folder / f"step-{step:08d}"
        with contextlib.suppress(Damaged):
            if (path / _CHECKSUMS).exists():
                _compare_checksum(path, _STATE, _checksums(path))
            return _facts(_state_file(path))
    return None


def verify(path: Path) -> None:
    """Raise `Damaged` unless all files of a checkpoint are as they were written."""
    has_checksums = (path / _CHECKSUMS).exists()
    if has_checksums:
        expected = _checksums(path)
        later = [_LOG] if _LOG in expected or (path / _LOG).exists() else []
        for name in (_METHOD, _OPTIMIZER, _STATE, *later):
            _compare_checksum(path, name, expected)
    known = _state_file(path)
    if path.name != f"step-{known.step:08d}":
        raise Damaged(f"its {_STATE} is that of step {known.step}")
    if known.format == 0:
        broken = not_finite(load(path), set())
        if broken:
            raise Damaged(f"{broken[0]} is not a number (NaN)")
    elif not has_checksums:
        raise Damaged(f"{_CHECKSUMS} is missing")


def load(path: Path) -> State:
    """A checkpoint's content; raises `Damaged` if it cannot be read. Bit flips are found by `verify`."""
    known = _state_file(path)
    try:
        log = load_file(path / _LOG) if (path / _LOG).exists() else {}
        method = {name: value for name, value in load_file(path / _METHOD).items() if not _RETIRED.search(name)}
        return State(known.step, method, load_file(path / _OPTIMIZER), _facts(known), log)
    except (OSError, ValueError, SafetensorError) as error:
        raise Damaged(_reason(error)) from None


def set_aside_after(step: int, folder: Path) -> None:
    """Rename the checkpoints after `step`, which are damaged: training is about to write these steps again."""
    for later in steps(folder):
        if later > step:
            path = folder / f"step-{later:08d}"
            names = (f"damaged-{path.name}{suffix}" for suffix in ("", *(f"-{number}" for number in range(2, 1000))))
            path.rename(next(folder / name for name in names if not (folder / name).exists()))


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def _fill(folder: Path, state: State) -> None:
    for name, tensors in ((_METHOD, state.method), (_OPTIMIZER, state.optimizer), (_LOG, state.log)):
        write_tensors(folder / name, tensors)
    content = {"format": _FORMAT, "version": metadata.version("asterism"), "step": state.step}
    text = json.dumps(content | state.facts.model_dump(mode="json"), indent=2)
    (folder / _STATE).write_text(f"{text}\n", encoding="utf-8")
    sums = [f"{_digest(folder / name)}  {name}\n" for name in (_METHOD, _OPTIMIZER, _LOG, _STATE)]
    (folder / _CHECKSUMS).write_text("".join(sums), encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(path: Path) -> dict[str, str]:
    try:
        text = (path / _CHECKSUMS).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Damaged(_reason(error)) from None
    return {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}


def _compare_checksum(path: Path, name: str, expected: Mapping[str, str]) -> None:
    try:
        found = _digest(path / name)
    except (OSError, ValueError) as error:
        raise Damaged(_reason(error)) from None
    if found != expected.get(name):
        raise Damaged(f"{name} does not match its checksum")


def _state_file(path: Path) -> _StateFile:
    try:
        values = json.loads((path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(_reason(error)) from None
    if not isinstance(values, dict):
        raise Damaged(f"{_STATE} contains a {type(values).__name__} instead of names and values")
    written = values.get("format")
    if isinstance(written, int) and written > _FORMAT:
        raise UserError(
            f"{path} was written by a newer version of Asterism ({values.get('version')}, format {written}); this "
            f"version, {metadata.version('asterism')}, reads up to format {_FORMAT}. Update Asterism"
        )
    try:
        return _StateFile.parse(values)
    except UserError as error:
        raise Damaged(f"{_STATE} has wrong values ({'; '.join(str(error).splitlines())})") from None


def _facts(known: _StateFile) -> Facts:
    return Facts(**{name: getattr(known, name) for name in Facts.model_fields})


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _is_sound(value: Tensor, *, finite: bool) -> bool:
    if not value.is_floating_point():
        return True
    return bool(value.isfinite().all()) if finite else not bool(value.isnan().any())


def _point(link: Path, target: str) -> None:
    """It helps people alone, who have the checkpoint's own name if it fails."""
    temporary = link.with_name(".last.tmp")
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(link)
        flush_names(link.parent)


def prune(folder: Path, config: CheckpointConfig) -> None:
    """Delete checkpoints that are not to be kept, and what killed processes left. What fails now is tried again."""
    with contextlib.suppress(OSError):
        for step in steps(folder)[: -max(1, config.keep_last)]:
            if config.keep_every is None or step % config.keep_every:
                discard(folder / f"step-{step:08d}")
        delete_leftovers(folder)
        for leftover in folder.glob(".step-*.tmp"):  # of version 0.1
            shutil.rmtree(leftover)


def check_fit(saved: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors of another configuration: all names and shapes must be equal."""
    if saved.keys() != expected.keys():
        missing, extra = sorted(expected.keys() - saved.keys())[:3], sorted(saved.keys() - expected.keys())[:3]
        raise UserError(
            "the checkpoint belongs to another configuration"
            + (f"; it lacks {', '.join(missing)}" if missing else "")
            + (f"; it has {', '.join(extra)} that this one does not" if extra else "")
        )
    for name, value in expected.items():
        if saved[name].shape != value.shape:
            raise UserError(
                f"the checkpoint's {name} has shape {list(saved[name].shape)}, but this configuration needs "
                f"{list(value.shape)}; resume with the configuration of the run, or start a new run with --init"
            )


def _gather(value: Tensor) -> Tensor:
    """The full tensor on the CPU, also if it is sharded. A copy, because training continues while it is written."""
    return whole(value).detach().to("cpu", copy=True)
