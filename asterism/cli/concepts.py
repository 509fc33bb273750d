"""`asterism concepts`: what a model sees in images, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Device, Images, Model, WeightsOption, model_of
from asterism.cli.printing import say


@app.command()
def concepts(
    model: Model,
    images: Images,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            "-t",
            metavar="WORDS",
            help="What to find in the images, with an aligned model; may be repeated.",
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            "-i",
            metavar="FILE",
            help="Images embedded with the same model: shows the nearest ones for each concept.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="The folder of the index's images, if they have moved."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the page and pictures.")] = Path(
        "concepts"
    ),
    neighbours: Annotated[int, typer.Option(min=1, help="Images shown per concept.")] = 5,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The tokenizer whose codes the model predicts, if its file does not contain it."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing pictures in --out.")] = False,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Show which concepts a model finds in images, and where.

    Draws the map of every concept over each image, and the image reconstructed from its concepts. With an index written
    by `asterism embed`, also shows the nearest images for each concept. With --text and a model of `asterism align`,
    shows which concepts the words mean, and where. Concepts are numbered from 0.

    \b
    Examples:
      asterism concepts runs/first cat.jpg dog.jpg
      asterism embed runs/first --data photos/ --out photos.parquet
      asterism concepts runs/first cat.jpg --index photos.parquet --out cat
      asterism concepts runs/first-text photo.jpg --text "the handle of the cup"
    """
    from asterism import api

    say(
        api.concepts(
            model_of(model, weights_option),
            images,
            out,
            text=text or [],
            index=index,
            data=data,
            neighbours=neighbours,
            tokenizer=tokenizer,
            overwrite=overwrite,
            device=device,
        )
    )
