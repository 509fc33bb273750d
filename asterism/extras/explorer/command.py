"""Walk through what a model learned, in the browser: `asterism explore`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asterism.api.parameters import AnyModel, Device, PathLike
from asterism.errors import UserError

if TYPE_CHECKING:
    from asterism.nn.encoder import Encoder
    from asterism.train.run import Run


def explore(
    model: AnyModel,
    data: Annotated[
        PathLike | None,
        typer.Option("--data", "-d", metavar="DATA", help="The images; by default those of the run or of the index."),
    ] = None,
    *,
    index: Annotated[
        PathLike | None,
        typer.Option("--index", "-i", metavar="FILE", help="Their vectors, as `asterism embed` wrote them."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="SPLIT", help="A part of the data; by default all of it.")
    ] = None,
    other: Annotated[
        PathLike | Run | Encoder | None,
        typer.Option("--with", metavar="MODEL", help="A second model, shown side by side."),
    ] = None,
    allow_writes: Annotated[
        PathLike | None,
        typer.Option("--allow-writes", metavar="DIR", help="Let the page write copies and labels to this folder only."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    device: Device = "auto",
    say: Callable[[str], None] = print,
) -> None:
    """Walk through what a model learned, in the browser: a map, concepts and places, edits, search, labels, curves.

    The page is served on the loopback address, until the command is interrupted. With an index, data is the folder of
    its images, if they have moved.

    In Python, say gets the address.

    Examples:

        asterism explore runs/first --data photos/
        asterism explore runs/first --index photos.parquet
        asterism explore runs/first --data photos/ --with runs/second
        asterism explore runs/first --data photos/ --allow-writes chosen/
    """
    from asterism.data.sources.open import open_everything, open_source
    from asterism.extras.explorer.model import ExploredModel
    from asterism.extras.explorer.open import open_explored
    from asterism.extras.explorer.server import check_installed, serve
    from asterism.models import open_model

    check_installed()
    if index is not None and split is not None:
        raise UserError("an index records the split of its images; leave out --split, or leave out --index")
    subjects = [open_model(each, device) for each in (model, other) if each is not None]
    models = [ExploredModel(subject.model.name, subject.encoder, subject.run) for subject in subjects]
    images = None
    if index is None:
        path = subjects[0].data(data)
        images = open_everything(path)[0] if split is None else open_source(path, split)
    place = None if index is None else Path(index)
    writes = None if allow_writes is None else Path(allow_writes)
    explored = open_explored(models, images, place, None if data is None else os.fspath(data), writes)
    serve(explored, port, show=browser, say=say)
