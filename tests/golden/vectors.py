"""Reading golden files: arrays as tensors, parameters as a dictionary, and the error measure their tolerances use."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Vectors:
    arrays: dict[str, Tensor]
    params: dict[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]


def read(path: Path) -> Vectors:
    with np.load(path, allow_pickle=False) as file:
        params = json.loads(str(file["params"])) if "params" in file else {}
        numeric = {name: file[name] for name in file.files if file[name].dtype.kind in "fiub"}
    return Vectors({name: torch.from_numpy(np.array(value)) for name, value in numeric.items()}, params)


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """Largest absolute error of an array divided by its largest absolute value."""
    assert ours.shape == expected.shape, f"{tuple(ours.shape)} instead of {tuple(expected.shape)}"
    scale = expected.double().abs().max().clamp_min(1e-12)
    return float((ours.detach().double() - expected.double()).abs().max() / scale)
