"""The fingerprint of an encoder: a hash that changes with everything that changes a feature.

Weights alone are not enough: the same tensors with a different number of heads, epsilon, activation or size rule are a
different network. So the hash also covers every module's class and plain settings, except those used only in training.
An encoder that is saved and loaded again, or moved to another device, keeps its fingerprint.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from asterism.nn.encoder import Encoder

# Modules that do nothing after training, and settings that change how features are computed but not their values.
_IDLE_MODULES = {"Dropout", "DropPath", "KeyedDropPath", "Identity", "PatchDropout"}
_IDLE_SETTINGS = {"training", "drop_path", "checkpointing", "grad_checkpointing", "fused_attn", "inplace", "step"}
_ORIGINS = {"pretrained_cfg", "default_cfg", "feature_info", "weight_init_mode", "fix_init"}  # timm's metadata
_IDLE_TENSORS = {"backbone.mask_token"}  # `encode` masks nothing


def encoder_fingerprint(encoder: Encoder) -> str:
    """A hash of the weights, the network's structure and settings, and the preprocessing of pixels."""
    digest = hashlib.blake2b(json.dumps(_structure(encoder), sort_keys=True).encode(), digest_size=16)
    for name, tensor in encoder.state_dict().items():
        if name not in _IDLE_TENSORS:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _structure(encoder: nn.Module) -> list[Any]:
    """Name, class and settings of every module used in encoding."""
    return [
        [name, type(module).__qualname__, _settings(module)]
        for name, module in encoder.named_modules()
        if type(module).__name__ not in _IDLE_MODULES
    ]


def _settings(module: nn.Module) -> dict[str, Any]:
    """The public attributes of a module, without tensors and submodules, which are hashed separately."""
    left_out = _IDLE_SETTINGS | _ORIGINS | {"mask_token"}
    return {
        name: _plain(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in left_out and not isinstance(value, nn.Module | Tensor)
    }


def _plain(value: Any) -> Any:
    """The value as JSON types, tuples as lists; for types that JSON does not support, the name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, functools.partial):
        return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, torch.dtype | torch.Size):
        return str(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
