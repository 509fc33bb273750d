"""`asterism predict`: what a fine-tuned model says about images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Device, OverwriteFiles
from asterism.cli.printing import say, warn


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="RUN", help="A fine-tuned run.")],
    images: Annotated[
        Path, typer.Option("--images", "-i", metavar="PLACE", help="A folder of images, one image, or a video.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the results.")] = Path(
        "predictions"
    ),
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 16,
    overwrite: OverwriteFiles = False,
    device: Device = "auto",
) -> None:
    """Write what a fine-tuned run predicts for new images: files for programs, and drawn pictures.

    Every image with its prediction is drawn to drawings/. Classification also writes predictions.csv and
    predictions.json with the probabilities of the five most probable classes; other tasks write masks or boxes.

    \b
    Examples:
      asterism predict runs/flowers --images new/ --out predictions
      asterism predict runs/flowers --images film.mp4 --out frames
    """
    from asterism import api

    made = api.predict(model, images, out, batch_size=batch_size, overwrite=overwrite, device=device)
    say(f"{made.images} images: {made.folder / 'drawings'}")
    for path in made.files:
        say(path)
    for bad in made.skipped:
        warn(f"skipped {bad}", "yellow")
