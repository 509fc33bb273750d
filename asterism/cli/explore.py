"""`asterism explore`: walk through what a model learned, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Device, WeightsOption, model_of
from asterism.cli.printing import say


@app.command()
def explore(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run folder, a weights file or a timm name.")],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="The images; by default those of the run or of the index."),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option("--index", "-i", metavar="FILE", help="Their vectors, as `asterism embed` wrote them."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="A part of the data; by default all of it.")
    ] = None,
    other: Annotated[
        str | None, typer.Option("--with", metavar="MODEL", help="A second model, shown side by side.")
    ] = None,
    allow_writes: Annotated[
        Path | None,
        typer.Option("--allow-writes", metavar="DIR", help="Let the page write copies and labels to this folder only."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Walk through what a model learned, in the browser: a map, concepts and places, edits, search, labels, curves.

    \b
    Examples:
      asterism explore runs/first --data photos/
      asterism explore runs/first --index photos.parquet
      asterism explore runs/first --data photos/ --with runs/second
      asterism explore runs/first --data photos/ --allow-writes chosen/
    """
    from asterism import api

    api.explore(
        model_of(model, weights_option),
        data,
        index=index,
        split=split,
        other=other,
        allow_writes=allow_writes,
        port=port,
        browser=browser,
        device=device,
        say=say,
    )
