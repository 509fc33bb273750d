"""Weights as a file of torch."""

from __future__ import annotations

from pathlib import Path

import torch

from asterism.errors import MissingExtra
from asterism.nn.encoder import Encoder
from asterism.tools.export.target import Model, Target, Written


def _write(encoder: Encoder, folder: Path, dtype: torch.dtype) -> Written:
    torch.save(encoder.state_dict(), folder / "plain.pt")
    return Written(sizes=())


def _open(folder: Path) -> Model:
    raise MissingExtra("star", "star")


PLAIN = Target("plain", "star", ("plain.pt",), _write, _open)
