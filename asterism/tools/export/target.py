"""What every export target provides. A new one is a file with a `Target`, listed in `asterism.tools.export.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from asterism.errors import MissingExtra
from asterism.nn.encoder import Encoder

EXTRA = "export"

# Images [b, 3, h, w] in [0, 1] to the outputs of an exported model, by name.
Model = Callable[[Float[Tensor, "b 3 h w"]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Written:
    """What an exported model can do, beyond being equal to the encoder at its image size."""

    any_size: bool  # equal at every image size whose sides are multiples of the patch size
    notes: tuple[str, ...] = ()  # what differs or is left out, for the summary and the model card
    usage: str = ""  # how to use it, for the model card (Markdown)


@dataclass(frozen=True)
class Target:
    """A format: how to write an encoder in it, and how its users open it."""

    name: str
    library: str  # that opens it, as the Hugging Face Hub calls it
    files: tuple[str, ...]  # all that it may write
    write: Callable[[Encoder, Path, torch.dtype], Written]  # into an existing folder
    open: Callable[[Path], Model]  # may raise `MissingExtra`


def needed(module: str) -> Any:
    """An optional package; the error names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], EXTRA) from None
