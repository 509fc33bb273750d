"""`asterism evaluate`: score an encoder or a fine-tuned model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from asterism.cli.app import app
from asterism.cli.options import Data, Device, Overrides, WeightsOption, model_of
from asterism.cli.printing import show_result


@app.command()
def evaluate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A run folder, a weights file, a timm name, or `pixels` (no network)."),
    ],
    overrides: Overrides = None,
    data: Data = None,
    protocols: Annotated[
        str | None,
        typer.Option(
            "--protocols",
            "-p",
            help="Comma-separated: see `asterism list protocols`.  [default: knn; a fine-tuned run: its task]",
        ),
    ] = None,
    train_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split to train on.  [default: train]")
    ] = None,
    test_split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Split to test on.  [default: test, else val]")
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="Also evaluate raw pixels and an untrained network of the same architecture."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write the results here instead of RUN/eval.")
    ] = None,
    weights_option: WeightsOption = None,
    device: Device = "auto",
) -> None:
    """Evaluate an encoder on labelled data.

    Results are written to RUN/eval/PROTOCOL.json (on other data: PROTOCOL@DATA.json) with all settings of the protocol.
    A labelled folder without train and test splits is divided: a fifth of every class is held out. Without --data, the
    run's own data is used. A fine-tuned run is measured by its task's own metric, unless --protocols are given.

    \b
    Examples:
      asterism evaluate runs/first --data labelled/ --protocols knn
      asterism evaluate runs/first --data labelled/ --baselines knn.k=20 knn.label_share=0.1
      asterism evaluate vit_small_patch16_224.dino --data labelled/
      asterism evaluate tiny.pth --data labelled/ --weights-option heads=4 --weights-option mean=0.5
    """
    from asterism import api
    from asterism.ops.collectives import rank

    names = None if protocols is None else [name.strip() for name in protocols.split(",") if name.strip()]
    results = api.evaluate(
        model_of(model, weights_option),
        data,
        names,
        train_split=train_split,
        test_split=test_split,
        baselines=baselines,
        out=out,
        device=device,
        overrides=overrides or [],
    )
    for result in results.values() if rank() == 0 else ():
        show_result(result)
