"""`asterism profile`: where the time of a training step goes."""

from __future__ import annotations

from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Data, Overrides


@app.command()
def profile(
    recipe: Annotated[
        str,
        typer.Argument(metavar="METHOD|RECIPE|FILE.yaml", help="What to profile: see `asterism list recipes`."),
    ],
    overrides: Overrides = None,
    data: Data = None,
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Steps to time, after two that are not.")] = 10,
) -> None:
    """Show where the time of a training step goes: views, networks, loss, backward pass, optimiser, averages.

    Nothing is written. Times are medians over a few steps in one process, which also makes the views.

    \b
    Examples:
      asterism profile dino --data photos/
      asterism profile ibot --data scenes backbone.depth=6 trainer.batch_size=32 --steps 5
    """
    from asterism import api
    from asterism.viz.console import plain_console

    plain_console().print(api.profile(recipe=recipe, data=data, overrides=overrides or [], steps=steps).table())
