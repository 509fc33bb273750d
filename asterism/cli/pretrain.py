"""`asterism pretrain`: train an encoder on images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Data, Overrides, WeightsOption, model_of
from asterism.cli.printing import say, show_plan
from asterism.errors import UserError


@app.command()
def pretrain(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[METHOD|RECIPE|FILE.yaml]", help="What to train: see `asterism list methods`, `list recipes`."
        ),
    ] = None,
    overrides: Overrides = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run in --out.")] = False,
    init: Annotated[
        str | None,
        typer.Option(metavar="WEIGHTS", help="Start from these weights: a run, a file, a folder, a timm name."),
    ] = None,
    weights_option: WeightsOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the time, memory and disk that the run needs.")
    ] = False,
) -> None:
    """Train an encoder on images without labels.

    --data is a folder of images (any nesting), a folder of tar shards, or a data set's name. Settings are changed with
    section.key=value, by the names used in the YAML recipes.

    \b
    Examples:
      asterism pretrain dino --data photos/ --out runs/first
      asterism pretrain recipe.yaml --out runs/x optim.lr=3e-4 trainer.batch_size=64
      asterism pretrain dino --data photos/ trainer.minutes=30 --dry-run
      asterism pretrain adapt --init dinov2_vits14_pretrain.pth --data photos/
      asterism pretrain --resume runs/first
    """
    from asterism import api
    from asterism.ops.collectives import rank

    changes = list(overrides or [])
    if recipe is not None and "=" in recipe:
        changes.insert(0, recipe)
        recipe = None
    start = None if init is None else model_of(init, weights_option)
    if init is None and weights_option:
        raise UserError("--weights-option describes the weights of --init, which is not given")
    if dry_run:
        show_plan(api.plan(recipe=recipe, data=data, init=start, overrides=changes))
        return
    run = api.pretrain(
        recipe=recipe, data=data, out=out, resume=resume, overwrite=overwrite, init=start, overrides=changes
    )
    if rank() == 0:
        say(f"Finished: {run.path}")
        say(f"Next:     asterism evaluate {run.path} --data LABELLED/  or  asterism report {run.path}")
