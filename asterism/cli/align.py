"""`asterism align`: give an encoder words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Overrides, WeightsOption, model_of
from asterism.cli.printing import say


@app.command()
def align(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="The encoder: a run folder, a weights file or a timm name."),
    ] = None,
    overrides: Overrides = None,
    data: Annotated[
        str | None,
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
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run in --out.")] = False,
    weights_option: WeightsOption = None,
) -> None:
    """Align a frozen encoder with text, on images with captions.

    The features of all images are computed once. A probe then learns to pool them into the space of a text model: a
    published one, which is frozen too, or our own, which is trained with it. probe.tokens chooses what the probe reads:
    sparse, class, patches, sparse+class or mean-patch.

    \b
    Examples:
      asterism align runs/first --data captions.jsonl --out runs/first-text
      asterism align runs/first --data captions_train2017.json --text clip-vit-base-patch16/ probe.tokens=class
      asterism align --resume runs/first-text
      asterism search runs/first-text --index photos.parquet --text "two dogs on a beach"
    """
    from asterism import api
    from asterism.ops.collectives import rank

    changes = list(overrides or [])
    if source is not None and "=" in source and resume is not None:
        changes.insert(0, source)
        source = None
    start = None if source is None else model_of(source, weights_option)
    run = api.align(start, data, text, out, resume=resume, overwrite=overwrite, overrides=changes)
    if rank() == 0:
        say(f"Finished: {run.path}")
        say(f"Next:     asterism embed {run.path} --data PHOTOS/  and  asterism search {run.path} --text SENTENCE")
