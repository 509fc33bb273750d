"""`asterism list`: what can be chosen by name."""

from __future__ import annotations

from typing import Annotated

import typer

from asterism.cli.app import app


@app.command("list")
def list_entries(
    kind: Annotated[str, typer.Argument(metavar="methods|tasks|recipes|studies|datasets|protocols|models")],
    substring: Annotated[str, typer.Argument(metavar="[FILTER]", help="Part of the name.", show_default=False)] = "",
) -> None:
    """List the available methods, tasks, recipes, studies, data sets, protocols or models.

    \b
    Examples:
      asterism list methods
      asterism list models small
    """
    from rich.table import Table

    from asterism.tools.choices import entries
    from asterism.viz.console import plain_console

    table = Table("name", "description", box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for name, summary in entries(kind, substring).items():
        table.add_row(name, summary)
    plain_console().print(table)
