"""`asterism demo`: from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.printing import say, show_result

# The demo's evaluations, on scenes that it was not trained on; segmentation uses 48 labelled scenes.
_DEMO_SCORES: dict[str, tuple[str, list[str]]] = {
    "knn": ("scenes:size=64,count=2000", ["knn.k=[20]"]),
    "reconstruction": ("scenes:size=64,count=500", ["reconstruction.network=random-convolutions"]),
    "dense-nn": ("scenes:size=64,count=192", ["dense-nn.shares=[0.25]", "dense-nn.draws=3"]),
}


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = Path("demo"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing demo.")] = False,
) -> None:
    """Pretrain on built-in scenes, evaluate, and write a report: minutes on a laptop, no download.

    The report compares the trained encoder with raw pixels and with the same network untrained.
    """
    from asterism import api

    run = api.pretrain(recipe="demo", out=out, overwrite=overwrite)
    for protocol, (data, changes) in _DEMO_SCORES.items():
        for result in api.evaluate(run, data, protocol, baselines=True, overrides=changes).values():
            show_result(result)
    say(f"Report: {api.report(run).resolve()}")
