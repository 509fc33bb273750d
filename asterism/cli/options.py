"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from asterism.api import Weights

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.", show_default=False)
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="DATA", help="A folder of images, tar shards, or a name: see `list datasets`."
    ),
]
AnyModel = Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a weights file or a timm name.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A run folder or weights of a model with concepts.")]
WeightsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weights-option",
        "-w",
        metavar="WORD=VALUE",
        help="What a weights file does not say: heads=4, mean=0.5,0.5,0.5, name=TIMM_MODEL, …; may be repeated.",
    ),
]
MasksOut = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for masks and overlays.")]
OverwriteFiles = Annotated[bool, typer.Option("--overwrite", help="Replace existing files in --out.")]
Images = Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to compute.")]


def model_of(place: str, options: list[str] | None) -> str | Weights:
    """A model with what the user says about its weights."""
    if not options:
        return place
    from asterism import api
    from asterism.nn.weights.description import parse_options

    return api.weights(place, **parse_options(options))
