"""`asterism track`: masks through a video."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import AnyModel, Device, MasksOut, Overrides, OverwriteFiles, WeightsOption, model_of
from asterism.cli.printing import say, warn


@app.command()
def track(
    model: AnyModel,
    video: Annotated[
        Path, typer.Option("--video", "-v", metavar="DIR", help="The frames, in the order of their names.")
    ],
    mask: Annotated[
        Path, typer.Option("--mask", "-m", metavar="IMAGE", help="The objects of the first frame, one colour each.")
    ],
    overrides: Overrides = None,
    out: MasksOut = Path("tracked"),
    overwrite: OverwriteFiles = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Track objects through a video, from a mask of its first frame. Nothing is trained.

    The mask is a PNG of the frame's size: black is background, every other value or colour is an object. Writes
    masks/FRAME.png with the same values, overlays/FRAME.jpg, an animation, and tracking.json with the confidence in
    each object and the frames in which it is lost. Settings: short_side, context, topk, radius, temperature,
    lost_below.

    \b
    Examples:
      asterism track runs/first --video frames/ --mask first.png --out tracked
      asterism track runs/first --video frames/ --mask first.png radius=8 short_side=320
    """
    from asterism import api

    tracked = api.track(
        model_of(model, weights_option), video, mask, out, overwrite=overwrite, device=device, overrides=overrides or []
    )
    objects = "1 object" if tracked.objects == 1 else f"{tracked.objects} objects"
    say(f"{objects} in {tracked.frames} frames: {tracked.folder}")
    say(tracked.animation)
    for loss in tracked.lost:
        until = "and not found again" if loss.last is None else f"until frame {loss.last}"
        warn(
            f"object {loss.object} is lost from frame {loss.first} on {until} (confidence {loss.confidence:.0%})",
            "yellow",
        )
