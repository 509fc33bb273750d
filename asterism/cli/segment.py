"""`asterism segment`: masks from a few labelled examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import AnyModel, Device, MasksOut, Overrides, OverwriteFiles, WeightsOption, model_of
from asterism.cli.printing import say, warn


@app.command()
def segment(
    model: AnyModel,
    examples: Annotated[
        Path, typer.Option("--examples", "-e", metavar="DIR", help="images/NAME.jpg and masks/NAME.png.")
    ],
    images: Annotated[
        Path, typer.Option("--images", "-i", metavar="DIR", help="The images to segment: a folder or one file.")
    ],
    overrides: Overrides = None,
    out: MasksOut = Path("segmented"),
    overwrite: OverwriteFiles = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Segment images from a few labelled examples. Nothing is trained.

    Examples are images/NAME.jpg with masks/NAME.png, or NAME.jpg next to NAME.png. A mask holds a class number at every
    pixel: 0 is the background, 255 is ignored. Settings: k, temperature, short_side.

    \b
    Examples:
      asterism segment runs/first --examples labelled/ --images new/ --out segmented
      asterism segment runs/first --examples labelled/ --images photo.jpg k=10
    """
    from asterism import api

    found = api.segment(
        model_of(model, weights_option),
        examples,
        images,
        out,
        overwrite=overwrite,
        device=device,
        overrides=overrides or [],
    )
    say(f"{found.images} images from {found.examples} examples of {len(found.classes)} classes: {found.folder}")
    for bad in found.skipped:
        warn(f"skipped {bad}", "yellow")
