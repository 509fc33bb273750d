"""What every export target provides. A new one is a file with a `Target`, listed in `asterism.tools.export.export` or
added by a package."""

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
    """What an exported model can do."""

    sizes: tuple[tuple[int, int], ...]  # heights and widths at which it must be equal
    notes: tuple[str, ...] = ()  # what differs or is left out, for the summary and the model card
    usage: str = ""  # how to use it, for the model card (Markdown)
    has_head: bool = True  # of a fine-tuned model


@dataclass(frozen=True)
class Target:
    """A format: how to write an encoder in it, and how its users open it."""

    name: str
    library: str  # that opens it, as the Hugging Face Hub calls it
    files: tuple[str, ...]  # all that it may write
    write: Callable[[Encoder, Path, torch.dtype], Written]  # into an existing folder
    open: Callable[[Path], Model]  # may raise `MissingExtra`


def feature_sizes(encoder: Encoder, any_size: bool) -> tuple[tuple[int, int], ...]:
    """The encoder's size and, if a model takes any in multiples of a patch, a larger one that is not square."""
    size, side = encoder.image_size, encoder.patch_size
    return ((size, size), (size + side, size + 2 * side)) if any_size else ((size, size),)


def output_sizes(encoder: Encoder, any_size: bool) -> tuple[tuple[int, int], ...]:
    """The same for models with all outputs: where images are padded to a canvas, its size and a smaller one."""
    if encoder.canvas is None:
        return feature_sizes(encoder, any_size)
    height, width = encoder.canvas
    return (height, width), (max(1, height - 5), max(1, width - 3))


def needed(module: str) -> Any:
    """An optional package; the error names the extra that installs it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], EXTRA) from None
