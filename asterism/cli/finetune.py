"""`asterism finetune`: train a task on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Overrides, WeightsOption, model_of
from asterism.cli.printing import say


@app.command()
def finetune(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[SOURCE]", help="What to start from: a run folder, a weights file or a timm name."),
    ] = None,
    overrides: Overrides = None,
    task: Annotated[
        str | None, typer.Option("--task", "-t", metavar="NAME", help="What to learn: see `asterism list tasks`.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.yaml", help="Instead of --task: settings of a paper, see `list recipes`."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="DATA", help="Labelled images: a folder, annotations, or a name."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="The new run folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume this run from its last checkpoint.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run in --out.")] = False,
    weights_option: WeightsOption = None,
) -> None:
    """Train a task on labelled images, starting from a pretrained network.

    A tenth of the training images is held out, and chooses the best weights and when to stop (validation.share).
    Settings are changed with section.key=value; head=NAME chooses the head.

    \b
    Examples:
      asterism finetune runs/first --task classify --data labelled/ --out runs/flowers
      asterism finetune vit_small_patch16_224.dino --task classify --data cifar10 trainer.epochs=50
      asterism finetune runs/first --task probe --data labelled/
      asterism finetune --resume runs/flowers
    """
    from asterism import api
    from asterism.ops.collectives import rank

    changes = list(overrides or [])
    if source is not None and "=" in source and resume is not None:
        changes.insert(0, source)
        source = None
    start = None if source is None else model_of(source, weights_option)
    run = api.finetune(start, task, data, out, recipe=recipe, resume=resume, overwrite=overwrite, overrides=changes)
    if rank() == 0:
        say(f"Finished: {run.path}")
        say(f"Next:     asterism predict {run.path} --images NEW/  or  asterism evaluate {run.path} --data LABELLED/")
