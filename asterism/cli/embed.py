"""`asterism embed`: features of many images in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import AnyModel, Data, Device, WeightsOption, model_of
from asterism.cli.printing import say, warn


@app.command()
def embed(
    model: AnyModel,
    data: Data = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A .parquet or .npz file.")] = Path(
        "embeddings.parquet"
    ),
    split: Annotated[str | None, typer.Option(metavar="NAME", help="Only this split of the data.")] = None,
    dense: Annotated[bool, typer.Option("--dense", help="Also write one embedding per patch.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 64,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Write one vector per image, with its file name and, if known, its label.

    All splits of the data are embedded unless --split selects one. A model with concepts also writes these and their
    maps, for `asterism concepts --index`.

    \b
    Examples:
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism embed runs/first --data photos/ --out photos.npz --dense
    """
    from asterism import api

    written = api.embed(
        model_of(model, weights_option),
        data,
        out,
        split=split,
        dense=dense,
        overwrite=overwrite,
        batch_size=batch_size,
        device=device,
    )
    say(f"{written.images} images of {written.data} × {written.dim} dimensions: {written.path}")
    if written.skipped:
        warn(f"skipped {written.skipped} unreadable images, see {written.bad_images}", "yellow")
