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
    head: Annotated[
        str,
        typer.Option(metavar="auto|vote|trained", help="What labels patches; auto: the better one on the examples."),
    ] = "auto",
    out: MasksOut = Path("segmented"),
    overwrite: OverwriteFiles = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Segment images from a few labelled examples. The network is not trained.

    Examples are images/NAME.jpg with masks/NAME.png, or NAME.jpg next to NAME.png. A mask holds a class number at every
    pixel: 0 is the background, 255 is ignored. Patches are labelled by a vote of the nearest patches of the examples,
    or by a small head trained on them. Each example is also segmented with the help of the others: this chooses the
    better way and says which IoU to expect. Settings: balance, k, temperature, short_side.

    \b
    Examples:
      asterism segment runs/first --examples labelled/ --images new/ --out segmented
      asterism segment runs/first --examples labelled/ --images photo.jpg --head vote k=10
    """
    from asterism import api

    found = api.segment(
        model_of(model, weights_option),
        examples,
        images,
        out,
        overwrite=overwrite,
        device=device,
        overrides=[f"head={head}", *(overrides or [])],
    )
    say(f"{found.images} images from {found.examples} examples of {len(found.classes)} classes: {found.folder}")
    if found.estimate is not None:
        values = {number: value for number, value in found.estimate.iou.items() if value is not None}
        by_class = ", ".join(f"{number}: {value:.0%}" for number, value in values.items())
        mean = f"{found.estimate.mean:.0%} ± {found.estimate.error:.0%}"
        say(f"Expected IoU, from examples left out: {mean} ({by_class}), head {found.head}")
    for warning in found.warnings():
        warn(warning, "yellow")
    for bad in found.skipped:
        warn(f"skipped {bad}", "yellow")
