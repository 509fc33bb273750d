"""Reading third-party weight files: tensors and the plain values stored with them, never code."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asterism.errors import UserError, reason_of
from asterism.inputs import read_json
from asterism.nn.safetensors_file import read_safetensors

_PICKLED = (".pth", ".pt", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *_PICKLED)
_INDEX = ".safetensors.index.json"
_IN_FOLDERS = ("encoder.safetensors", "model.safetensors", f"model{_INDEX}", "pytorch_model.bin")
_WRAPPERS = ("model", "state_dict")
_MOST_CONFIG = 64 << 20  # bytes; the index of a model in many files has some megabytes


@dataclass(frozen=True)
class CheckpointFile:
    """One network of a weight file. Wrapper prefixes (`module.`, `backbone.`) are removed from the names."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)  # of safetensors files
    trained_pair: bool = False  # whether the file has a student and a teacher
    config: Mapping[str, Any] = field(default_factory=dict)  # config.json next to it (transformers, timm)
    preprocessor: Mapping[str, Any] = field(default_factory=dict)  # preprocessor_config.json next to it (transformers)


def read_checkpoint(path: Path, which: str = "teacher", keys: Mapping[str, str] | None = None) -> CheckpointFile:
    """A weight file, or the one in a run's or a transformers folder.

    which: chooses between student and teacher. keys: regular expressions, and what replaces them in tensors' names.
    """
    path = _file_in(path)
    values, metadata = _read_values(path)
    processor = _json_next_to(path, "processor_config.json").get("image_processor")
    return CheckpointFile(
        path=path,
        tensors=_renamed(path, _network(path, values, which), keys or {}),
        metadata=metadata,
        trained_pair=len(_pair(values)) == 2,
        config=_json_next_to(path, f"{path.stem}_config.json", "config.json"),
        preprocessor=_json_next_to(path, "preprocessor_config.json") or _mapping(processor),
    )


def read_projection(path: Path) -> dict[str, Tensor]:
    """The layers of the pretrained projection head in a weight file of DINO, iBOT and their like, as `0.weight`, …

    That of the teacher, if there are two. Empty if the file has none.
    """
    values, _ = _read_values(_file_in(path))
    pair = _pair(values)
    tensors = values["teacher" if "teacher" in pair else pair[0]] if pair else values
    for head in (r"teacher_head\.network", "head"):  # our checkpoints have both, the teacher's and the student's
        pattern = re.compile(rf"(?:module\.)?{head}\.mlp\.(\d+\.(?:weight|bias))")
        matches = {name: pattern.fullmatch(str(name)) for name in tensors}
        found = {match[1]: tensors[name] for name, match in matches.items() if match}
        if found:
            return found
    return {}


def _file_in(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"no such file or folder: {path}")
    if not path.is_dir():
        return path
    found = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), None)
    if found is None:
        raise UserError(
            f"{path} contains no weights: expected one of {', '.join(_IN_FOLDERS)} in it "
            "(a run writes encoder.safetensors with its first checkpoint)"
        )
    return found


def _read_values(path: Path) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    if path.name.endswith(_INDEX):
        return _read_shards(path), {}
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix in _PICKLED:
        return _read_pickled(path), {}
    raise UserError(f"cannot read weights from {path}: expected a file {', '.join(SUFFIXES)}")


def _read_shards(index: Path) -> Mapping[str, Any]:
    """The tensors of a model that transformers stored in several files, all of them in the index's folder."""
    shards = _mapping(_json_next_to(index, index.name).get("weight_map"))
    names = sorted({str(name) for name in shards.values()})
    if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise UserError(f"{index} does not list safetensors files of its own folder in 'weight_map'")
    tensors: dict[str, Any] = {}
    for name in names:
        if not index.with_name(name).is_file():
            raise UserError(f"{index} lists {name}, which is not in its folder; copy all files of the model")
        tensors |= read_safetensors(index.with_name(name))[0]
    return tensors


def _read_pickled(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise UserError(f"{path} is not a regular file; give the file of the weights")
    try:
        # Public DINO and MAE files store their command line with the weights; a Namespace only holds values.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            values = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} contains more than tensors and plain values, and opening it could run code; if you trust it, load "
            "it with torch yourself and save its state dict with safetensors.torch.save_file"
        ) from None
    except Exception as error:  # on damaged files, torch raises almost any exception
        raise UserError(f"{path} is not a complete torch checkpoint: {reason_of(error)}") from None
    if not isinstance(values, Mapping):
        raise UserError(f"{path} contains a {type(values).__name__}, expected a state dict")
    return values


def _network(path: Path, values: Mapping[str, Any], which: str) -> dict[str, Tensor]:
    """The tensors of one network, without the wrappers of training code."""
    pair = _pair(values)
    if pair:
        if which not in pair:
            raise UserError(f"{path} has no {which}; it contains: {', '.join(pair)}")
        values = values[which]
    elif which == "student":
        raise UserError(f"{path} contains a single network, not a student and a teacher; leave out which='student'")
    for wrapper in _WRAPPERS:
        if isinstance(values.get(wrapper), Mapping):
            values = values[wrapper]
    tensors = {str(name): value for name, value in values.items() if isinstance(value, Tensor)}
    for prefix in ("module.", "backbone."):
        if any(name.startswith(prefix) for name in tensors):
            tensors = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    if not tensors:
        raise UserError(
            f"{path} contains no tensors where a state dict is expected; its entries are {list(values)[:5]}"
        )
    for name, tensor in tensors.items():
        problem = _problem(tensor)
        if problem is not None:
            raise UserError(f"{name} of {path} {problem}")
    return tensors


def _renamed(path: Path, tensors: dict[str, Tensor], keys: Mapping[str, str]) -> dict[str, Tensor]:
    for pattern, replacement in keys.items():
        try:
            names = {name: re.sub(pattern, replacement, name) for name in tensors}
        except (re.error, IndexError) as error:
            raise UserError(f"keys: {replacement!r} cannot replace {pattern!r}: {error}") from None
        if all(re.search(pattern, name) is None for name in tensors):
            raise UserError(
                f"keys: no tensor of {path} matches {pattern!r}; its names are {', '.join(list(tensors)[:4])} … "
                "(a pattern is for names in the file, and its replacement makes those of a known family of them)"
            )
        if len(set(names.values())) < len(names):
            raise UserError(f"keys: {pattern}={replacement} gives two tensors of {path} the same name")
        tensors = {names[name]: tensor for name, tensor in tensors.items()}
    return tensors


def _problem(tensor: Tensor) -> str | None:
    """Why no network can hold a tensor, and the fix; None for a usual one."""
    if tensor.is_meta:
        return "has no values, only a shape (device meta); save the weights from a network that has loaded them"
    if tensor.is_quantized:
        return "is quantised; save the weights before quantisation, or what `dequantize()` returns"
    if tensor.layout != torch.strided:
        return f"is sparse ({str(tensor.layout).removeprefix('torch.')}); save what `to_dense()` returns"
    if tensor.shape[:1] == (0,):  # no register tokens are [1, 0, d]
        return "is empty, as the shards of a distributed run are; save the weights gathered from all processes"
    return None


def _pair(values: Mapping[str, Any]) -> list[str]:
    return [name for name in ("student", "teacher") if isinstance(values.get(name), Mapping)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json_next_to(path: Path, *names: str) -> Mapping[str, Any]:
    file = next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)
    if file is None:
        return {}
    return _mapping(read_json(file, _MOST_CONFIG))
