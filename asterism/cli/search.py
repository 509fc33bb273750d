"""`asterism search`: similar images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Device, WeightsOption, model_of
from asterism.cli.printing import say


@app.command()
def search(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The run folder or weights that the index was made with.")
    ],
    index: Annotated[
        Path, typer.Option("--index", "-i", metavar="FILE", help="The collection, as `asterism embed` wrote it.")
    ],
    query: Annotated[
        list[Path] | None,
        typer.Option("--query", "-q", metavar="IMAGE", help="The image to look for; may be repeated."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text", "-t", metavar="SENTENCE", help="What to look for, with an aligned model; may be repeated."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The contact sheet: an .html or .png file.")
    ] = Path("neighbours.html"),
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Images shown per query.")] = 12,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="The folder of the index's images, if they have moved."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing sheet.")] = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Find the images of a collection that are most similar to a query, and draw a contact sheet.

    A query is an image or, with a model of `asterism align`, a sentence.

    \b
    Examples:
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism search runs/first --index photos.parquet --query a.jpg
      asterism search runs/first --index photos.parquet -q a.jpg -q b.jpg --out sheet.png
      asterism search runs/first-text --index photos.parquet --text "two dogs on a beach"
    """
    from asterism import api

    found = api.search(
        model_of(model, weights_option),
        index,
        query or [],
        out,
        text=text or [],
        count=count,
        data=data,
        overwrite=overwrite,
        device=device,
    )
    for path, neighbours in found.items():
        say(path)
        for neighbour in neighbours:
            say(f"  {neighbour.similarity:.3f}  {neighbour.key}")
    say(out)
