"""Align a frozen encoder with text, on images with captions: `asterism align`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asterism.api.parameters import NewRun, Overrides, OverwriteRun, PathLike, Resume, changes_of
from asterism.errors import UserError

if TYPE_CHECKING:
    from asterism.extras.words.run import AlignedRun
    from asterism.models import Weights
    from asterism.train.run import Run


def align(
    source: Annotated[
        PathLike | Run | Weights | None,
        typer.Argument(metavar="[SOURCE]", help="The encoder: a run folder, a weights file or a timm name."),
    ] = None,
    data: Annotated[
        PathLike | Mapping[str, Any] | None,
        typer.Option(
            "--data", "-d", metavar="CAPTIONS", help="A .jsonl or .csv file, COCO's captions, tar files, or scenes."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            "-t",
            metavar="TEXT_MODEL",
            help="own, a folder, hf:ORGANISATION/MODEL or open_clip:MODEL:WEIGHTS.  [default: own]",
        ),
    ] = None,
    out: NewRun = None,
    *,
    resume: Resume = None,
    overwrite: OverwriteRun = False,
    overrides: Overrides = (),
    **settings: Any,
) -> AlignedRun:
    """Align a frozen encoder with text, on images with captions.

    The features of all images are computed once. A probe then learns to pool them into the space of a text model: a
    published one, which is frozen too, or our own, which is trained with it. probe.tokens chooses what the probe reads:
    sparse, class, patches, sparse+class or mean-patch.

    In Python, settings are changed as in `pretrain`, for example `probe={"tokens": "class"}`. out: by default
    runs/aligned. Returns the run. docs/words.md describes the captions.

    Examples:

        asterism align runs/first --data captions.jsonl --out runs/first-text
        asterism align runs/first --data captions_train2017.json --text clip-vit-base-patch16/ probe.tokens=class
        asterism align --resume runs/first-text
        asterism search runs/first-text --index photos.parquet --text "two dogs on a beach"
    """
    began = time.monotonic()
    from asterism.extras.words.opening import ALIGNMENT
    from asterism.extras.words.recipe import load_align_recipe
    from asterism.models import place_of
    from asterism.train import engine

    if data is not None:
        settings["data"] = data if isinstance(data, Mapping) else {"path": data}
    changes = changes_of(settings, overrides)
    if resume is not None:
        if any(value is not None for value in (source, text, out)) or overwrite:
            raise UserError("--resume continues a run as it is; leave out the source, --text, --out and --overwrite")
        return engine.resume(ALIGNMENT, Path(resume), changes, began=began)
    if source is None:
        raise UserError("give the encoder to align: a run folder, a weights file or a timm name")
    weights = place_of(source)
    recipe = load_align_recipe(weights.place, text, weights.options, changes)
    folder = Path("runs/aligned" if out is None else out)
    return engine.start(ALIGNMENT, recipe, folder, overwrite=overwrite, began=began)
