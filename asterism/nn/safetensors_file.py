"""Our own safetensors files: written atomically, with a checksum that is verified when they are read.

The format has no checksum of its own: a flipped bit in a weight would load unnoticed and change every feature.
Files of others have none, and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from asterism.errors import UserError, reason_of
from asterism.files import replacing
from asterism.inputs import as_text, is_text, parse_json

METADATA_KEY = "asterism"  # under which our files describe themselves, in JSON
_CHECKSUM = "checksum"  # part of that description, because the order of several keys would differ from file to file
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.bool: "BOOL",
}
_MOST_HEADER = 32 << 20  # bytes; a network of a thousand tensors needs 0.1 MB


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write the file atomically; an older one stays until the new one is complete. Weights that are NaN are refused."""
    broken = next(
        (name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.isnan().any()), None
    )
    if broken is not None:
        raise UserError(f"{broken} is not a number (NaN), so {path} is not written: a network with it is useless")
    with replacing(path) as temporary:
        complete = {**description, _CHECKSUM: _checksum(tensors, description)}
        write_tensors(temporary, tensors, {METADATA_KEY: json.dumps(complete)})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file at this place, with plain writes: the library's own writer maps a file of a name of its
    own into memory, which a process that is killed leaves behind."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(_bytes(tensor))


def read_safetensors(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Tensors and metadata as stored in the file."""
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except Exception as error:  # on damaged headers, safetensors and torch raise almost any exception
        raise UserError(
            f"{path} is not a complete safetensors file: {reason_of(error)}; restore it from a copy, or check the disk"
        ) from None
    description = _description(metadata)
    stored = description.pop(_CHECKSUM, None)
    if stored is None:
        return tensors, metadata
    if stored != _checksum(tensors, description):
        raise UserError(
            f"{path} is damaged: its content does not match its checksum. Restore it from a copy; a run writes it "
            "again when it is resumed (--resume)"
        )
    return tensors, {**metadata, METADATA_KEY: json.dumps(description)}


def _description(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Our description, not checked; empty if there is none that can be read."""
    try:
        values = parse_json(metadata[METADATA_KEY])
    except (KeyError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _checksum(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    """SHA-256 of the description and of the tensors' names, types, shapes and values."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def _check_header(path: Path) -> None:
    """Refuse a file whose header has another length than it states, or is longer than any network needs."""
    if not path.is_file():
        raise UserError(f"{path} is not a regular file; give the file of the weights")
    if not is_text(str(path)):
        raise UserError(f"{as_text(str(path))} cannot be opened, because its path is not UTF-8; rename it")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise UserError(f"{path} is not a complete safetensors file: it has {size:,} bytes, fewer than its header says")
    if length > _MOST_HEADER:
        raise UserError(
            f"{path} has a header of {length:,} bytes, more than {_MOST_HEADER:,}; save the weights again without it"
        )
