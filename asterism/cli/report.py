"""`asterism report`: a page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.printing import say


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders; several runs share one page.")],
) -> None:
    """Write a self-contained page with curves and pictures.

    \b
    Examples:
      asterism report runs/first
      asterism report runs/dino runs/mae
    """
    from asterism import api

    say(api.report(*runs))
